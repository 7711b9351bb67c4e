// Formats, SVG and the tooltip: what every chart of the page uses. Text from the run's files only
// ever becomes text nodes and attributes, never markup.
const LANES = ['compute', 'cpu_optimizer', 'host_to_device', 'device_to_host', 'nvme_read', 'nvme_write'];
const LANE_NAMES = {
  compute: 'compute', cpu_optimizer: 'CPU optimizer', host_to_device: 'host to device',
  device_to_host: 'device to host', nvme_read: 'nvme read', nvme_write: 'nvme write', other: 'other',
};
const CAUSES = [...LANES, 'other'];
const causeName = cause =>
  ['compute', 'cpu_optimizer', 'other'].includes(cause) ? LANE_NAMES[cause] : 'waiting for ' + LANE_NAMES[cause];
const color = lane => `var(--${lane})`;

const isNumber = value => typeof value === 'number' && Number.isFinite(value);

function formatBytes(bytes) {
  if (!isNumber(bytes)) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = 0;
  while (Math.abs(bytes) >= 1024 && unit < units.length - 1) { bytes /= 1024; ++unit; }
  return (unit === 0 ? bytes : bytes.toPrecision(3).replace(/e\+.*/, '')) + ' ' + units[unit];
}
function formatSeconds(seconds) {
  if (!isNumber(seconds)) return '–';
  const size = Math.abs(seconds);
  if (size === 0) return '0 s';
  if (size < 1e-3) return (seconds * 1e6).toPrecision(3) + ' µs';
  if (size < 1) return (seconds * 1e3).toPrecision(3) + ' ms';
  if (size < 100) return seconds.toPrecision(3) + ' s';
  const total = Math.round(seconds);
  if (total < 3600) return `${Math.floor(total / 60)} min ${total % 60} s`;
  return `${Math.floor(total / 3600)} h ${Math.floor(total / 60) % 60} min`;
}
function formatNumber(value) {
  if (!isNumber(value)) return '–';
  const size = Math.abs(value);
  if (size === 0) return '0';
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace('e+', 'e');
  return size >= 100 ? Math.round(value).toLocaleString('en-US') : String(+value.toPrecision(4));
}
const formatPercent = share => isNumber(share) ? (share * 100).toFixed(share < 0.0995 ? 1 : 0) + ' %' : '–';
function formatOver(actual, bound) {
  return bound > 0 ? `${actual >= bound ? '+' : '−'}${(Math.abs(actual / bound - 1) * 100).toFixed(1)} %` : '';
}

function median(values) {
  const sorted = values.filter(isNumber).sort((a, b) => a - b);
  if (sorted.length === 0) return NaN;
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}

/** Without the zeros that a round value ends in: "4.00 s" is "4 s". */
const trimZeros = text => text.replace(/(\.\d*?)0+(?=\D|$)/, '$1').replace(/\.(?=\D|$)/, '');

/** An element with attributes and children (nodes or text). */
function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}
function makeSvg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children);
}
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const byId = id => document.getElementById(id);

/** About `count` round values from `low` to `high`. */
function ticks(low, high, count) {
  const span = high - low;
  if (!(span > 0)) return [low];
  const rough = span / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find(factor => factor * power >= rough * 0.999);
  const list = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; ++i) list.push(i * step);
  return list;
}
/** As ticks(), round in KiB, MiB and so on. */
function byteTicks(low, high, count) {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(high, 1)) / 10));
  return ticks(low / unit, high / unit, count).map(tick => tick * unit);
}
/** Powers of ten, with 2 and 5 between where there is room. */
function logTicks(low, high) {
  const decades = Math.log10(high / low);
  const factors = decades > 3 ? [1] : decades > 1.2 ? [1, 3] : [1, 2, 5];
  const list = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); ++power) {
    for (const factor of factors) {
      const value = factor * 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) list.push(value);
    }
  }
  return list;
}

/** Rows are [name, value, color?]. */
function showTooltip(x, y, title, rows) {
  const box = byId('tooltip');
  box.replaceChildren(make('div', {class: 'title'}, title), ...rows.map(([name, value, swatch]) => {
    const label = make('span', {});
    if (swatch) label.append(make('i', {class: 'swatch', style: `background:${swatch};margin-right:6px`}));
    label.append(name);
    return make('div', {class: 'row'}, label, make('span', {}, value));
  }));
  box.hidden = false;
  const size = box.getBoundingClientRect();
  const left = x + 14 + size.width > innerWidth ? x - 14 - size.width : x + 14;
  box.style.left = Math.max(4, Math.min(left, innerWidth - size.width - 4)) + 'px';
  box.style.top = Math.max(4, Math.min(y + 14, innerHeight - size.height - 4)) + 'px';
}
function hideTooltip() { byId('tooltip').hidden = true; }

/** Calls draw(width) now and whenever the element's width changes. */
function drawToWidth(element, draw) {
  let width = 0;
  const update = () => {
    const now = Math.floor(element.clientWidth);
    if (now > 0 && now !== width) draw(width = now);
  };
  new ResizeObserver(update).observe(element);
  update();
}
const legendItem = (name, fillColor, number = '') => make(
  'li', {}, make('i', {class: 'swatch', style: `background:${fillColor}`}), make('span', {}, name),
  ...(number ? [make('span', {class: 'number'}, number)] : []));
