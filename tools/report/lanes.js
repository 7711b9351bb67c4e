// One step: what its time is charged to, its lanes, and what the tiers hold, on one time axis that
// can be zoomed.

/** `timeline`: see tools/report_data.h. */
class LaneChart {
  constructor(container, timeline) {
    this.timeline = timeline;
    this.begin = 0;
    this.end = timeline.seconds;
    this.plot = make('div', {});
    this.where = make('span', {class: 'where'});
    this.buttons = {};
    const controls = make('div', {class: 'controls'});
    for (const [key, text, label] of [['in', '+', 'Zoom in'], ['out', '−', 'Zoom out'], ['left', '←', 'Earlier'], ['right', '→', 'Later'], ['all', 'Whole step', 'Show the whole step']]) {
      const button = make('button', {type: 'button', 'aria-label': label}, text);
      button.onclick = () => this.move(key);
      this.buttons[key] = button;
      controls.append(button);
    }
    controls.append(this.where);
    const legend = make('ul', {class: 'legend'}, ...CAUSES.map(cause => legendItem(LANE_NAMES[cause], color(cause))));
    container.append(controls, this.plot, legend);
    drawToWidth(this.plot, width => { this.width = width; this.draw(); });
  }

  move(key) {
    const span = this.end - this.begin, middle = (this.begin + this.end) / 2;
    if (key === 'in') this.show(middle - span / 4, middle + span / 4);
    if (key === 'out') this.show(middle - span, middle + span);
    if (key === 'left') this.show(this.begin - span / 2, this.end - span / 2);
    if (key === 'right') this.show(this.begin + span / 2, this.end + span / 2);
    if (key === 'all') this.show(0, this.timeline.seconds);
  }

  show(begin, end) {
    const whole = this.timeline.seconds;
    const span = Math.min(Math.max(end - begin, Math.min(1e-6, whole)), whole);
    begin = Math.max(0, Math.min(begin, whole - span));
    this.begin = begin;
    this.end = begin + span;
    this.draw();
  }

  draw() {
    const width = this.width;
    if (!width) return;
    this.narrow = width < 640;
    this.left = this.narrow ? 0 : 128;
    this.right = width - 6;
    this.rows = this.layOut();
    const height = this.rows[this.rows.length - 1].bottom + 26;
    const svg = makeSvg('svg', {class: 'plot', height, viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: 'img',
                                'aria-label': `Lanes of step ${this.timeline.step} over ${formatSeconds(this.timeline.seconds)}`});
    this.drawAxis(svg, height);
    for (const row of this.rows) this.drawRow(svg, row);
    this.addPointer(svg);
    this.plot.replaceChildren(svg);
    const whole = this.begin === 0 && this.end === this.timeline.seconds;
    this.where.textContent = whole ? `${formatSeconds(this.end)}; drag over a part to zoom` : `${formatSeconds(this.begin)} to ${formatSeconds(this.end)}`;
    this.buttons.all.disabled = this.buttons.out.disabled = whole;
    this.buttons.left.disabled = this.begin === 0;
    this.buttons.right.disabled = this.end === this.timeline.seconds;
  }

  toX(seconds) {
    return this.left + (seconds - this.begin) / (this.end - this.begin) * (this.right - this.left);
  }
  toSeconds(x) {
    return this.begin + (x - this.left) / (this.right - this.left) * (this.end - this.begin);
  }

  /** Rows from top to bottom; where it is narrow each has its name above it. */
  layOut() {
    const rows = [];
    let y = 2;
    const add = (row, height) => {
      const top = y + (this.narrow ? 17 : 0);
      rows.push({...row, top, bottom: top + height, nameAt: this.narrow ? y + 13 : top + height / 2 + 4});
      y = top + height + (this.narrow ? 5 : 8);
    };
    add({kind: 'charges', name: 'time charged to'}, 20);
    for (const lane of this.timeline.lanes) {
      // Transfers in flight at once are lines below each other.
      const height = lane.tracks === 1 ? 20 : Math.min(lane.tracks * 9, Math.max(72, lane.tracks * 2));
      add({kind: 'lane', lane, name: LANE_NAMES[lane.lane]}, height);
    }
    for (const memory of this.timeline.memory) add({kind: 'memory', memory, name: `${memory.tier} memory`}, 58);
    if (this.timeline.in_flight.length > 0) add({kind: 'in_flight', name: 'nvme in flight'}, 40);
    return rows;
  }

  drawAxis(svg, height) {
    const bottom = height - 22;
    for (const tick of ticks(this.begin, this.end, Math.max(2, Math.floor((this.right - this.left) / 110)))) {
      const x = this.toX(tick);
      const anchor = x > this.right - 24 ? 'end' : x < this.left + 24 ? 'start' : 'middle';
      svg.append(makeSvg('line', {class: 'gridline', x1: x, x2: x, y1: 0, y2: bottom}),
                 makeSvg('text', {x, y: height - 6, 'text-anchor': anchor}, trimZeros(formatSeconds(Math.abs(tick) < 1e-12 ? 0 : +tick.toPrecision(6)))));
    }
  }

  drawRow(svg, row) {
    svg.append(makeSvg('text', {class: 'strong', x: 0, y: row.nameAt}, row.name));
    if (row.kind === 'charges') this.drawSpans(svg, row, this.timeline.charges, 1, charge => color(charge.cause), charge => LANE_NAMES[charge.cause]);
    if (row.kind === 'lane') this.drawSpans(svg, row, row.lane.events, row.lane.tracks, () => color(row.lane.lane), event => event.name);
    if (row.kind === 'memory') this.drawMemory(svg, row);
    if (row.kind === 'in_flight') this.drawInFlight(svg, row);
  }

  /** Spans that are too short to be seen one by one are drawn together. */
  drawSpans(svg, row, spans, tracks, colorOf, nameOf) {
    const lineHeight = (row.bottom - row.top) / tracks;
    const gap = lineHeight >= 6 ? 1 : 0;
    const open = [];  // per track: {x, end, fill, name}
    const flush = (track, one) => {
      const width = Math.max(one.end - one.x, 0.6);
      const top = row.top + track * lineHeight;
      svg.append(makeSvg('rect', {x: one.x.toFixed(2), y: top.toFixed(2), width: Math.max(width - (width > 3 ? 0.6 : 0), 0.6).toFixed(2),
                                  height: Math.max(lineHeight - gap, 1).toFixed(2), rx: width > 6 && lineHeight > 8 ? 2 : 0, fill: one.fill}));
      const room = Math.floor((width - 8) / 6.7);
      if (lineHeight >= 16 && one.name && (room >= one.name.length || room >= 8)) {
        const text = one.name.length <= room ? one.name : one.name.slice(0, room - 1) + '…';
        svg.append(makeSvg('text', {class: 'inside', x: one.x + 4, y: top + lineHeight / 2 + 4}, text));
      }
    };
    for (const span of spans) {
      if (span.end < this.begin || span.begin > this.end) continue;
      const track = span.track || 0;
      const x = Math.max(this.toX(span.begin), this.left), end = Math.min(this.toX(span.end), this.right);
      const fill = colorOf(span), last = open[track];
      if (last && last.fill === fill && x - last.end < 0.4 && (end - x < 1.5 || last.end - last.x < 1.5)) {
        last.end = Math.max(last.end, end);
        last.name = '';
        continue;
      }
      if (last) flush(track, last);
      open[track] = {x, end, fill, name: nameOf(span)};
    }
    open.forEach((one, track) => one && flush(track, one));
  }

  /** A step function from left to right; points are [time, value], the first one holds before it. */
  outline(points, toY) {
    let path = '', y = null;
    if (points.length > 0) points = [[0, points[0][1]], ...points];
    for (let i = 0; i < points.length; ++i) {
      const until = i + 1 < points.length ? points[i + 1][0] : this.timeline.seconds;
      if (until < this.begin || points[i][0] > this.end) continue;
      const from = Math.max(this.toX(Math.max(points[i][0], this.begin)), this.left);
      const next = toY(points[i][1]);
      path += y === null ? `M${from.toFixed(1)},${next.toFixed(1)}` : `H${from.toFixed(1)}V${next.toFixed(1)}`;
      y = next;
    }
    return y === null ? '' : path + `H${this.right}`;
  }

  drawMemory(svg, row) {
    const {memory} = row;
    const toY = bytes => row.bottom - Math.min(bytes / memory.budget, 1.05) * (row.bottom - row.top - 6);
    const path = this.outline(memory.levels, toY);
    if (path) {
      svg.append(makeSvg('path', {d: `${path}V${row.bottom}H${this.left}Z`, fill: 'var(--soft)', opacity: 0.35}),
                 makeSvg('path', {d: path, fill: 'none', stroke: 'var(--soft)', 'stroke-width': 1.2}));
    }
    svg.append(makeSvg('line', {x1: this.left, x2: this.right, y1: toY(memory.budget), y2: toY(memory.budget), stroke: 'var(--nvme_write)', 'stroke-width': 1.5, 'stroke-dasharray': '5 3'}));
    const text = `budget ${formatBytes(memory.budget)}`;
    svg.append(makeSvg('text', this.narrow ? {x: this.right, y: row.nameAt, 'text-anchor': 'end'} : {x: 0, y: row.nameAt + 16}, text));
  }

  drawInFlight(svg, row) {
    const high = Math.max(1, ...rangePair(this.timeline.in_flight.map(([, read, write]) => Math.max(read, write))).filter(Number.isFinite));
    const toY = count => row.bottom - count / high * (row.bottom - row.top - 2);
    for (const [index, lane] of [[1, 'nvme_read'], [2, 'nvme_write']]) {
      const path = this.outline([[0, 0], ...this.timeline.in_flight.map(point => [point[0], point[index]])], toY);
      if (path) svg.append(makeSvg('path', {d: path, fill: 'none', stroke: color(lane), 'stroke-width': 1.3}));
    }
    svg.append(makeSvg('line', {class: 'axis', x1: this.left, x2: this.right, y1: row.bottom, y2: row.bottom}));
    svg.append(makeSvg('text', this.narrow ? {x: this.right, y: row.nameAt, 'text-anchor': 'end'} : {x: 0, y: row.nameAt + 15}, `at most ${high}`));
  }

  /** Shows what is under the pointer; a drag zooms, a double click shows the whole step. */
  addPointer(svg) {
    const line = makeSvg('line', {class: 'cursor', y1: 0, y2: this.rows[this.rows.length - 1].bottom, visibility: 'hidden'});
    const selection = makeSvg('rect', {class: 'selection', y: 0, height: this.rows[this.rows.length - 1].bottom, width: 0});
    svg.append(line, selection);
    let from = null;
    const at = event => {
      const box = svg.getBoundingClientRect();
      return {x: Math.max(this.left, Math.min(event.clientX - box.left, this.right)), y: event.clientY - box.top};
    };
    svg.onpointerdown = event => {
      from = at(event).x;
      svg.setPointerCapture(event.pointerId);
    };
    svg.onpointermove = event => {
      const {x, y} = at(event);
      fill(line, {x1: x, x2: x, visibility: 'visible'}, []);
      if (from !== null) fill(selection, {x: Math.min(from, x), width: Math.abs(x - from)}, []);
      this.tell(this.toSeconds(x), y, event);
    };
    svg.onpointerup = event => {
      const {x} = at(event), start = from;
      from = null;
      selection.setAttribute('width', 0);
      if (start !== null && Math.abs(x - start) > 5) this.show(this.toSeconds(Math.min(start, x)), this.toSeconds(Math.max(start, x)));
    };
    svg.onpointercancel = () => { from = null; selection.setAttribute('width', 0); hideTooltip(); };
    svg.onpointerleave = () => { line.setAttribute('visibility', 'hidden'); hideTooltip(); };
    svg.ondblclick = () => this.move('all');
    svg.onwheel = event => {
      if (!event.ctrlKey && !event.metaKey) return;  // else the page scrolls
      event.preventDefault();
      const middle = this.toSeconds(at(event).x), factor = event.deltaY < 0 ? 0.7 : 1 / 0.7;
      this.show(middle - (middle - this.begin) * factor, middle + (this.end - middle) * factor);
    };
    svg.onkeydown = event => {
      const key = {'+': 'in', '-': 'out', ArrowLeft: 'left', ArrowRight: 'right', '0': 'all'}[event.key];
      if (!key) return;
      this.move(key);
      event.preventDefault();
      this.plot.firstChild.focus();
    };
  }

  tell(seconds, y, event) {
    const row = this.rows.find(candidate => y >= candidate.top - 3 && y <= candidate.bottom + 3);
    const {clientX, clientY} = event;
    const moment = ['at', formatSeconds(seconds)];
    if (!row) return hideTooltip();
    if (row.kind === 'memory') {
      const used = this.levelAt(row.memory.levels, seconds)?.[1];
      return showTooltip(clientX, clientY, `${row.memory.tier} memory`, [['in use', formatBytes(used)], ['budget', formatBytes(row.memory.budget)], moment]);
    }
    if (row.kind === 'in_flight') {
      const [, read, write] = this.levelAt(this.timeline.in_flight, seconds) || [0, 0, 0];
      return showTooltip(clientX, clientY, 'nvme transfers in flight', [['read', String(read), color('nvme_read')], ['write', String(write), color('nvme_write')], moment]);
    }
    const spans = row.kind === 'charges' ? this.timeline.charges : row.lane.events;
    const tracks = row.kind === 'charges' ? 1 : row.lane.tracks;
    const track = Math.max(0, Math.min(tracks - 1, Math.floor((y - row.top) / (row.bottom - row.top) * tracks)));
    const slack = 2 * (this.end - this.begin) / (this.right - this.left);
    const distance = span => Math.max(span.begin - seconds, seconds - span.end, 0);
    let found = null;
    for (const span of spans) {
      if ((span.track || 0) === track && distance(span) <= slack && (!found || distance(span) < distance(found))) found = span;
    }
    if (!found) return showTooltip(clientX, clientY, `${row.name}: idle`, [moment]);
    const took = found.end - found.begin;
    const rows = [['took', formatSeconds(took)], ['from', formatSeconds(found.begin)]];
    if (found.bytes > 0) rows.push(['moved', formatBytes(found.bytes)], ['rate', took > 0 ? formatBytes(found.bytes / took) + '/s' : '–']);
    showTooltip(clientX, clientY, row.kind === 'charges' ? causeName(found.cause) : found.name, [...rows]);
  }

  /** The last of the points [time, ...] at that time. */
  levelAt(points, seconds) {
    let low = 0, high = points.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (points[middle][0] <= seconds) low = middle + 1; else high = middle;
    }
    return points[low - 1];
  }
}
