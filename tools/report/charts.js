// Charts over the steps of the run: lines, and areas that are stacked.

const CHART = {height: 190, left: 58, right: 10, top: 10, bottom: 24};

/** Draws frame, grid and labels; returns the scales. `y` is {low, high, log, format}. */
function drawFrame(svg, width, x, y) {
  const inner = {left: CHART.left, right: width - CHART.right, top: CHART.top, bottom: CHART.height - CHART.bottom};
  const toX = value => inner.left + (x.high > x.low ? (value - x.low) / (x.high - x.low) : 0.5) * (inner.right - inner.left);
  const part = y.log ? value => Math.log(value / y.low) / Math.log(y.high / y.low)
                     : value => (value - y.low) / (y.high - y.low);
  const toY = value => inner.bottom - part(value) * (inner.bottom - inner.top);
  const list = y.log ? logTicks : y.format === formatBytes ? byteTicks : ticks;
  for (const tick of list(y.low, y.high, 5)) {
    const at = toY(tick);
    svg.append(makeSvg('line', {class: 'gridline', x1: inner.left, x2: inner.right, y1: at, y2: at}),
               makeSvg('text', {x: inner.left - 8, y: at + 4, 'text-anchor': 'end'}, trimZeros(y.format(tick))));
  }
  svg.append(makeSvg('line', {class: 'axis', x1: inner.left, x2: inner.right, y1: inner.bottom, y2: inner.bottom}));
  for (const tick of ticks(x.low, x.high, Math.max(3, Math.floor(width / 90)))) {
    if (!Number.isInteger(tick)) continue;
    const at = toX(tick);
    const anchor = at > inner.right - 14 ? 'end' : 'middle';
    svg.append(makeSvg('line', {class: 'axis', x1: at, x2: at, y1: inner.bottom, y2: inner.bottom + 4}),
               makeSvg('text', {x: at, y: CHART.height - 6, 'text-anchor': anchor}, tick.toLocaleString('en-US')));
  }
  const fromX = at => x.low + (at - inner.left) / (inner.right - inner.left) * (x.high - x.low);
  return {inner, toX, toY, fromX};
}

function rangeOf(values, fromZero, log) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (!isNumber(value) || (log && value <= 0)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return null;
  if (log) return {low: low / 1.1, high: high * 1.1};
  if (fromZero) low = Math.min(low, 0);
  const margin = (high - low) * 0.06 || Math.abs(high) * 0.1 || 1;
  return {low: fromZero && low === 0 ? 0 : low - margin, high: high + margin};
}

/** Lets pointer and arrow keys choose a step; `show(index, x, y)` tells of it. */
function addCursor(svg, xs, scales, show) {
  const line = makeSvg('line', {class: 'cursor', y1: scales.inner.top, y2: scales.inner.bottom, visibility: 'hidden'});
  svg.append(line);
  let chosen = -1;
  const choose = (index, x, y) => {
    chosen = Math.max(0, Math.min(index, xs.length - 1));
    const at = scales.toX(xs[chosen]);
    fill(line, {x1: at, x2: at, visibility: 'visible'}, []);
    const box = svg.getBoundingClientRect();
    show(chosen, x ?? box.left + at, y ?? box.top + scales.inner.top);
  };
  const nearest = value => {
    let low = 0, high = xs.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (xs[middle] < value) low = middle + 1; else high = middle;
    }
    return low > 0 && value - xs[low - 1] < xs[low] - value ? low - 1 : low;
  };
  const leave = () => { line.setAttribute('visibility', 'hidden'); hideTooltip(); };
  svg.onpointermove = svg.onpointerdown = event => {
    choose(nearest(scales.fromX(event.clientX - svg.getBoundingClientRect().left)), event.clientX, event.clientY);
  };
  svg.onpointerleave = svg.onblur = leave;
  svg.onkeydown = event => {
    const move = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (move) { choose(chosen < 0 ? 0 : chosen + move); event.preventDefault(); }
    if (event.key === 'Escape') leave();
  };
}

function chartFrame(container, title, unit) {
  const plot = make('div', {});
  container.classList.add('chart');
  container.append(make('h3', {}, title + ' ', make('span', {class: 'unit'}, unit)), plot);
  return plot;
}

/**
 * Lines over steps. Series: {name, color, values (by index in steps) or points ([step, value])}.
 * Options: fromZero, log ('auto': where values differ a lot), format.
 */
function lineChart(container, title, unit, steps, series, options = {}) {
  const format = options.format || formatNumber;
  const all = series.flatMap(s => s.values || s.points.map(p => p[1]));
  const positive = all.filter(value => isNumber(value) && value > 0);
  const log = options.log === 'auto' && positive.length > 0 &&
    Math.max(...rangePair(positive)) / Math.min(...rangePair(positive)) > 50;
  const range = rangeOf(all, options.fromZero, log);
  const plot = chartFrame(container, title, unit + (log ? ', logarithmic' : ''));
  if (!range) {
    plot.append(make('p', {class: 'note'}, 'No values yet.'));
    return;
  }
  drawToWidth(plot, width => {
    const svg = makeSvg('svg', {class: 'plot', height: CHART.height, viewBox: `0 0 ${width} ${CHART.height}`,
                                tabindex: 0, role: 'img', 'aria-label': `${title} over steps ${steps[0]} to ${steps[steps.length - 1]}`});
    const scales = drawFrame(svg, width, {low: steps[0], high: steps[steps.length - 1]}, {...range, log, format});
    for (const one of series) {
      if (one.values) drawLine(svg, scales, steps, one, log);
      for (const [step, value] of one.points || []) {
        if (isNumber(value)) svg.append(makeSvg('circle', {cx: scales.toX(step), cy: scales.toY(value), r: 4, fill: one.color}));
      }
    }
    const dots = series.filter(s => s.values).map(s => makeSvg('circle', {r: 3.5, fill: s.color, visibility: 'hidden'}));
    svg.append(...dots);
    addCursor(svg, steps, scales, (index, x, y) => {
      series.filter(s => s.values).forEach((s, i) => {
        const value = s.values[index];
        const visible = isNumber(value) && !(log && value <= 0);
        fill(dots[i], visible ? {cx: scales.toX(steps[index]), cy: scales.toY(value), visibility: 'visible'} : {visibility: 'hidden'}, []);
      });
      const rows = series.map(s => {
        const value = s.values ? s.values[index] : (s.points.find(p => p[0] === steps[index]) || [])[1];
        return s.points && value === undefined ? null : [s.name, format(value), s.color];
      });
      showTooltip(x, y, 'step ' + steps[index].toLocaleString('en-US'), [...rows.filter(Boolean), ...(options.extra?.(index) || [])]);
    });
    svg.addEventListener('pointerleave', () => dots.forEach(dot => dot.setAttribute('visibility', 'hidden')));
    plot.replaceChildren(svg);
  });
  if (series.length > 1) container.append(make('ul', {class: 'legend'}, ...series.map(s => legendItem(s.name, s.color))));
}

function rangePair(values) {
  return values.reduce(([low, high], value) => [Math.min(low, value), Math.max(high, value)], [Infinity, -Infinity]);
}

function drawLine(svg, scales, steps, series, log) {
  let path = '', drawing = false, points = 0;
  steps.forEach((step, i) => {
    const value = series.values[i];
    const usable = isNumber(value) && !(log && value <= 0);
    if (usable) {
      path += `${drawing ? 'L' : 'M'}${scales.toX(step).toFixed(1)},${scales.toY(value).toFixed(1)}`;
      ++points;
    }
    drawing = usable;
  });
  svg.append(makeSvg('path', {d: path, fill: 'none', stroke: series.color, 'stroke-width': steps.length > 400 ? 1.2 : 1.8, 'stroke-linejoin': 'round'}));
  if (points <= 2) {
    steps.forEach((step, i) => {
      if (isNumber(series.values[i])) svg.append(makeSvg('circle', {cx: scales.toX(step), cy: scales.toY(series.values[i]), r: 3.5, fill: series.color}));
    });
  }
}

/**
 * Areas on each other, over steps. Series: {name, color, values}; missing values count as 0. The
 * axis ends at the highest step that `counts(index)`: others may be cut off.
 */
function stackedChart(container, title, unit, steps, series, format, counts = () => true) {
  const used = series.filter(s => s.values.some(value => value > 0));
  const totals = steps.map((_, i) => used.reduce((sum, s) => sum + (s.values[i] || 0), 0));
  const plot = chartFrame(container, title, unit);
  const high = rangePair(totals.filter((_, i) => counts(i)))[1];
  if (!(high > 0)) {
    plot.append(make('p', {class: 'note'}, 'No values yet.'));
    return;
  }
  drawToWidth(plot, width => {
    const svg = makeSvg('svg', {class: 'plot', height: CHART.height, viewBox: `0 0 ${width} ${CHART.height}`,
                                tabindex: 0, role: 'img', 'aria-label': `${title} over steps`});
    // Steps are columns: each holds its values over its whole width.
    const scales = drawFrame(svg, width, {low: steps[0], high: steps[steps.length - 1] + 1}, {low: 0, high: high * 1.05, format});
    const base = steps.map(() => 0);
    for (const one of used) {
      let upper = '', lower = '';
      steps.forEach((step, i) => {
        const left = scales.toX(step).toFixed(1);
        const right = scales.toX(i + 1 < steps.length ? steps[i + 1] : step + 1).toFixed(1);
        const from = Math.max(scales.toY(base[i]), 0).toFixed(1);
        base[i] += one.values[i] || 0;
        const to = Math.max(scales.toY(base[i]), 0).toFixed(1);
        upper += `${i ? 'L' : 'M'}${left},${to}L${right},${to}`;
        lower = `L${right},${from}L${left},${from}` + lower;
      });
      svg.append(makeSvg('path', {d: upper + lower + 'Z', fill: one.color}));
    }
    addCursor(svg, steps, {...scales, toX: step => scales.toX(step + 0.5), fromX: at => scales.fromX(at) - 0.5}, (index, x, y) => showTooltip(
      x, y, `step ${steps[index].toLocaleString('en-US')}: ${format(totals[index])}`,
      [...used].reverse().map(s => [s.name, format(s.values[index] || 0), s.color])));
    plot.replaceChildren(svg);
  });
  container.append(make('ul', {class: 'legend'}, ...used.map(s => legendItem(s.name, s.color))));
  const cut = steps.filter((_, i) => totals[i] > high * 1.05).length;
  if (cut > 0) container.append(make('p', {class: 'note'}, `${cut === 1 ? 'One column is' : cut + ' columns are'} higher than the axis: the first steps find cold memory.`));
}

/** Horizontal bars: rows of {name, value, color, text, mark (a line), whole (the bar's end)}. */
function barChart(container, title, unit, rows, format) {
  const plot = chartFrame(container, title, unit);
  const high = Math.max(...rows.flatMap(row => [row.value || 0, row.mark || 0]));
  drawToWidth(plot, width => {
    const rowHeight = 44, height = rows.length * rowHeight + 4;
    const svg = makeSvg('svg', {height, viewBox: `0 0 ${width} ${height}`, role: 'img', 'aria-label': title});
    rows.forEach((row, i) => {
      const top = i * rowHeight;
      const end = row.whole || high;
      const toX = value => (end > 0 ? value / end : 0) * (width - 4);
      svg.append(makeSvg('text', {class: 'strong', x: 0, y: top + 14}, row.name),
                 makeSvg('text', {x: width - 2, y: top + 14, 'text-anchor': 'end'}, row.text || format(row.value)),
                 makeSvg('rect', {x: 0, y: top + 20, width: width - 4, height: 14, rx: 3, fill: 'var(--panel)'}),
                 makeSvg('rect', {x: 0, y: top + 20, width: Math.max(toX(row.value || 0), row.value > 0 ? 2 : 0), height: 14, rx: 3, fill: row.color}));
      if (row.mark > 0) {
        svg.append(makeSvg('line', {x1: toX(row.mark), x2: toX(row.mark), y1: top + 17, y2: top + 37, stroke: 'var(--bound)', 'stroke-width': 2}));
      }
    });
    plot.replaceChildren(svg);
  });
}
