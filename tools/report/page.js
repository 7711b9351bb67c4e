// Puts the page together from the data of the run.

/** A column of the steps, empty where no line had it. */
const column = (steps, name) => steps[name] || steps.step.map(() => null);

class Report {
  constructor(data) {
    this.data = data;
    this.plan = data.report;
    this.steps = data.steps;
    this.count = this.steps.step.length;
    this.last = this.count > 0 ? this.steps.last : 0;
    // The first steps of a run (and of one that goes on) find cold memory and rough estimates.
    const first = (this.plan?.resumed_from || 0) + 2;
    const seconds = column(this.steps, 'seconds');
    const usable = this.steps.step.map((step, i) => isNumber(seconds[i]) && step > first);
    const any = usable.some(Boolean);
    this.isSteady = i => any ? usable[i] : isNumber(seconds[i]);
  }

  /** Median over the steady steps of this run. */
  typical(name) {
    return median(column(this.steps, name).filter((_, i) => this.isSteady(i)));
  }

  draw() {
    this.header();
    this.figures();
    this.curves();
    this.time();
    this.gap();
    this.lanes();
    this.bytes();
    this.memory();
    this.settings();
    const {written, headrace} = this.data;
    byId('footer').textContent = `Made from ${this.data.run} at ${written} by headrace ${headrace}.`;
  }

  header() {
    const {plan} = this;
    const name = plan ? plan.model.folder.split('/').filter(Boolean).pop() || plan.model.folder : this.data.run;
    byId('title').textContent = name;
    document.title = `Headrace report: ${name}`;
    const parts = [];
    if (plan) {
      const {model} = plan;
      parts.push(`${formatCount(model.parameters)} parameters, ${model.layers} layers of ${model.hidden_size}, ${model.dtype}`);
    }
    parts.push(plan ? `${this.last} of ${plan.steps} steps` : `${this.last} steps`);
    if (plan?.resumed_from > 0) parts.push(`resumed after step ${plan.resumed_from}`);
    const complete = plan && this.last >= plan.steps;
    if (plan && plan.state !== 'finished' && !complete) parts.push(plan.state === 'interrupted' ? 'stopped, can go on' : 'not finished');
    byId('subtitle').textContent = parts.join(' · ');
  }

  figures() {
    const add = (name, value, detail = '') => byId('figures').append(
      make('div', {class: 'figure'}, make('div', {class: 'name'}, name), make('div', {class: 'value'}, value), make('div', {class: 'detail'}, detail)));
    const losses = column(this.steps, 'loss').filter(isNumber);
    add('loss', formatNumber(losses[losses.length - 1]), losses.length > 1 ? `from ${formatNumber(losses[0])}` : '');
    const {evaluations} = this.data;
    if (evaluations.length > 0) {
      const [step, loss] = evaluations[evaluations.length - 1];
      add('validation loss', formatNumber(loss), `after step ${step}`);
    }
    const seconds = this.typical('seconds');
    add('tokens per second', formatNumber(this.typical('tokens_per_second')), 'median step');
    add('time of a step', formatSeconds(seconds), 'median');
    const bound = this.bound();
    if (bound > 0 && seconds > 0) add('above the bound', formatOver(seconds, bound), `no schedule takes less than ${formatSeconds(bound)}`);
    const [lane, share] = this.binding();
    if (lane) add('busiest lane', LANE_NAMES[lane] || lane, `busy ${formatPercent(share)} of the step`);
    const left = this.plan ? this.plan.steps - this.last : 0;
    if (left > 0 && seconds > 0) add('left', formatSeconds(left * seconds), `${left} steps at this pace`);
  }

  /** The lane that binds most steps, with its median share. */
  binding() {
    const lanes = column(this.steps, 'binding'), shares = column(this.steps, 'binding_share');
    const byLane = new Map();
    lanes.forEach((lane, i) => {
      if (lane && this.isSteady(i)) byLane.set(lane, [...(byLane.get(lane) || []), shares[i]]);
    });
    const [lane, list] = [...byLane].sort((a, b) => b[1].length - a[1].length)[0] || [];
    return [lane, lane ? median(list) : NaN];
  }

  /**
   * The least that any schedule takes for a median step. Rates change while a run goes on, and those
   * of report.json are of its last steps: what it says is how far the schedule is above its bound.
   */
  bound() {
    const gap = this.plan?.gap;
    return gap?.predicted_seconds > 0 ? this.typical('predicted_seconds') * gap.bound_seconds / gap.predicted_seconds : NaN;
  }

  curves() {
    const {steps, data} = this;
    if (this.count === 0) {
      byId('training-note').textContent = 'The run has not finished a step yet.';
      return;
    }
    const notes = [];
    if (steps.grouped > 1) notes.push(`Each point is the mean of ${steps.grouped} steps.`);
    if (steps.skipped > 0) notes.push(`${steps.skipped} steps were skipped: their gradients were not finite.`);
    if (steps.without_time > 0) notes.push(`Of ${steps.without_time} steps only the loss is known: the run was killed right after them.`);
    byId('training-note').textContent = notes.join(' ');
    const add = (...chart) => {
      const box = make('div', {});
      byId('curves').append(box);
      lineChart(box, ...chart);
    };
    const loss = [{name: 'training', color: color('compute'), values: column(steps, 'loss')}];
    if (data.evaluations.length > 0) loss.push({name: 'validation', color: color('nvme_read'), points: data.evaluations});
    add('Loss', '', steps.step, loss);
    add('Throughput', 'tokens per second', steps.step, [{name: 'tokens per second', color: color('host_to_device'), values: column(steps, 'tokens_per_second')}], {fromZero: true});
    add('Gradient norm', '', steps.step, [{name: 'gradient norm', color: color('cpu_optimizer'), values: column(steps, 'gradient_norm')}], {fromZero: true, log: 'auto'});
    add('Learning rate', '', steps.step, [{name: 'learning rate', color: color('device_to_host'), values: column(steps, 'learning_rate')}], {fromZero: true});
  }

  time() {
    if (!(this.typical('seconds') > 0)) {
      byId('time-note').textContent = 'No step has been measured yet.';
      return;
    }
    byId('time-note').textContent = 'Every moment of a step is charged to one cause: what computes, or else the transfer that the next operation waits for. Work that is hidden behind other work is not in here. Mean of the steps after the first two.';
    const seconds = CAUSES.map(cause => this.typicalPart(cause));
    const total = seconds.reduce((a, b) => a + b, 0);
    const bar = make('div', {class: 'bar', role: 'img', 'aria-label': 'Time of a step by cause'});
    CAUSES.forEach((cause, i) => {
      const share = seconds[i] / total;
      if (share > 0) bar.append(make('span', {style: `flex:${share} 1 0;background:${color(cause)}`, title: causeName(cause)}, share > 0.1 ? formatPercent(share) : ''));
    });
    byId('time-bar').append(bar, make('ul', {class: 'legend'}, ...CAUSES.flatMap((cause, i) => seconds[i] / total < 5e-4 ? [] :
      [legendItem(causeName(cause), color(cause), `${formatSeconds(seconds[i])}, ${formatPercent(seconds[i] / total)}`)])));
    stackedChart(byId('time-steps'), 'Time of each step', 'by cause', this.steps.step,
                 CAUSES.map(cause => ({name: causeName(cause), color: color(cause), values: column(this.steps, 'seconds_by_cause.' + cause)})), formatSeconds, this.isSteady);
  }

  /** Mean over the steady steps, so that the parts add up. */
  typicalPart(cause) {
    const values = column(this.steps, 'seconds_by_cause.' + cause).filter((value, i) => isNumber(value) && this.isSteady(i));
    return values.length > 0 ? values.reduce((a, b) => a + b, 0) / values.length : 0;
  }

  gap() {
    const seconds = this.typical('seconds'), predicted = this.typical('predicted_seconds'), bound = this.bound();
    if (!(seconds > 0)) return;
    const rows = [{name: 'measured, median', value: seconds, color: color('compute')}];
    if (predicted > 0) rows.push({name: 'predicted before the step, median', value: predicted, color: color('other')});
    if (bound > 0) {
      for (const row of rows) row.text = `${formatSeconds(row.value)}  (${formatOver(row.value, bound)})`;
      rows.push({name: 'least that any schedule could take', value: bound, color: 'var(--bound)'});
    }
    barChart(byId('gap'), 'Gap to the bound', 'time of a step', rows, formatSeconds);
    if (!(bound > 0)) byId('gap').append(make('p', {class: 'note'}, 'There is no bound in the folder yet.'));
  }

  lanes() {
    const {timeline} = this.data;
    if (!timeline) {
      byId('lanes-note').textContent = `There is no ${this.data.timeline_file} in the folder: train writes it after its first, fourth and eighth step.`;
      return;
    }
    byId('lanes-note').textContent = `Step ${timeline.step}, as it was measured. Transfers that were in flight at once lie below each other. Point at anything for its name, size and time.`;
    new LaneChart(byId('lanes'), timeline);
  }

  bytes() {
    const lanes = LANES.filter(lane => lane.includes('_to_') || lane.startsWith('nvme'));
    const moved = lane => this.typical('bytes.' + lane);
    const rows = lanes.filter(lane => moved(lane) > 0).map(lane => ({
      name: LANE_NAMES[lane], value: moved(lane), color: color(lane), mark: this.typical('planned_bytes.' + lane)}));
    if (rows.length === 0) {
      byId('bytes-note').textContent = this.typical('seconds') > 0 ? 'Nothing was moved between tiers.' : 'No step has been measured yet.';
      return;
    }
    barChart(byId('bytes'), 'A median step', 'the line marks what was planned', rows, formatBytes);
    const gap = this.plan?.gap;
    if (gap) {
      const line = (name, bytes, bound) => bytes > 0 ? [make('tr', {}, make('td', {}, name), make('td', {class: 'number'}, formatBytes(bytes)), make('td', {class: 'number'}, formatBytes(bound)), make('td', {class: 'number'}, formatOver(bytes, bound)))] : [];
      byId('bytes').append(make('table', {}, make('tr', {}, make('th', {}, 'both ways'), make('th', {class: 'number'}, 'moved'), make('th', {class: 'number'}, 'at least'), make('th', {class: 'number'}, 'above')),
        ...line('nvme', gap.nvme_bytes, gap.nvme_bound_bytes), ...line('host–device', gap.link_bytes, gap.link_bound_bytes)));
    }
    stackedChart(byId('bytes-steps'), 'Each step', 'by boundary', this.steps.step,
                 lanes.map(lane => ({name: LANE_NAMES[lane], color: color(lane), values: column(this.steps, 'bytes.' + lane)})), formatBytes);
  }

  memory() {
    const {plan} = this;
    if (!plan) {
      byId('memory').append(make('p', {class: 'note'}, `There is no ${this.data.report_file} in the folder: plan and budgets are not known.`));
      return;
    }
    barChart(byId('memory'), 'Used at most', 'of the budget; the line marks the smallest one that works', Object.entries(plan.memory).map(([tier, memory]) => (
      {name: `${tier} memory`, value: memory.high_water, whole: memory.budget, color: color('compute'), mark: memory.minimum,
       text: `${formatBytes(memory.high_water)} of ${formatBytes(memory.budget)}`})), formatBytes);
    const where = {weights: 'home', optimizer: 'home', gradients: 'down to', activations: 'down to', saved: 'down to', workspace: 'in'};
    const titles = {optimizer: 'optimizer state', optimizer_on_device: 'of it on the device', saved: 'saved for backward'};
    const {recompute, vocabulary_tiles: tiles, block_tiles: parts} = plan.plan;
    const isRow = ([name, row]) => row.tier && (name !== 'optimizer_on_device' || row.bytes > 0);
    byId('plan').append(make('h3', {}, 'What goes where'), make('table', {}, ...Object.entries(plan.plan).filter(isRow).map(([name, row]) => make(
      'tr', {}, make('td', {}, titles[name] || name), make('td', {class: 'number'}, formatBytes(row.bytes)), make('td', {}, `${where[name] || 'in'} ${row.tier}`)))));
    const notes = [];
    if (recompute) notes.push(`blocks computed again: ${recompute.block} whole, ${recompute.mlp} MLP, ${recompute.none} nothing`);
    if (tiles > 1) notes.push(`${tiles} vocabulary tiles`);
    if (parts && parts.mlp > 0) notes.push(`blocks in ${parts.attention} tiles of attention and ${parts.mlp} of the MLP`);
    if (notes.length > 0) byId('plan').append(make('p', {class: 'note'}, notes.join('; ')));
  }

  settings() {
    const {plan} = this;
    if (!plan) return;
    const rows = [['policy', plan.policy], ['nvme I/O', plan.nvme_io || 'none'], ['tokens per step', formatCount(plan.tokens_per_step)], ...Object.entries(plan.settings)];
    byId('settings').append(make('details', {}, make('summary', {}, `${rows.length} settings that decide the numbers and the plan`),
      make('table', {}, ...rows.map(([name, value]) => make('tr', {}, make('td', {}, name), make('td', {}, value))))));
  }
}

function formatCount(count) {
  if (!isNumber(count)) return '–';
  for (const [size, unit] of [[1e12, ' T'], [1e9, ' B'], [1e6, ' M']]) if (count >= size) return +(count / size).toPrecision(3) + unit;
  return count.toLocaleString('en-US');
}

new Report(JSON.parse(byId('data').textContent)).draw();
