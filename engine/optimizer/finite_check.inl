// Included by update_pass.inl, once for every instruction set.

HWY_BEFORE_NAMESPACE();
namespace headrace::engine {
namespace HWY_NAMESPACE {

/// Whether all values seen so far are finite: the largest magnitude, as bits.
template <class D>
class FiniteCheck {
 public:
  HWY_INLINE explicit FiniteCheck(D /*d*/) : largest_(hn::Zero(hn::RebindToSigned<D>())) {}

  HWY_INLINE void see(D /*d*/, hn::Vec<D> x) {
    const hn::RebindToSigned<D> di;
    largest_ = hn::Max(largest_, hn::And(hn::BitCast(di, x), hn::Set(di, 0x7fffffff)));
  }
  HWY_INLINE bool all_finite() const {
    const hn::RebindToSigned<D> di;
    return hn::AllFalse(di, hn::Gt(largest_, hn::Set(di, 0x7f7fffff)));
  }

 private:
  hn::Vec<hn::RebindToSigned<D>> largest_;
};

}  // namespace HWY_NAMESPACE
}  // namespace headrace::engine
HWY_AFTER_NAMESPACE();
