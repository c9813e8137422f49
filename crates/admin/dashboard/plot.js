// A plot of the last five minutes as inline SVG. It is drawn at its displayed width, so that text keeps its size.

const SPAN = 300_000;
const HEIGHT = 168;
const MARGIN = { top: 8, right: 10, bottom: 22, left: 46 };

const svg = (name, attributes = {}, text) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
};

/** Rounds up to 1, 2, 2.5 or 5 times a power of ten. */
function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((step) => step >= rough * 0.999);
}

/** Ticks from 0 to at least `highest`. */
export function ticks(highest, least) {
  const step = niceStep(Math.max(highest, least) / 4);
  const count = Math.max(1, Math.ceil(Math.max(highest, least) / step - 1e-9));
  return Array.from({ length: count + 1 }, (_, n) => n * step);
}

export class Plot {
  /** series: [{ label, value: point => number | null, format }]; least: the lowest maximum of the axis; tick: formats a tick. */
  constructor(figure, { title, series, least, tick }) {
    Object.assign(this, { series, least, tick, title, points: [] });
    const caption = document.createElement("figcaption");
    caption.append(Object.assign(document.createElement("strong"), { textContent: title }));
    const keys = Object.assign(document.createElement("span"), { className: "keys" });
    this.keys = series.map((_, n) =>
      Object.assign(document.createElement("span"), { className: n === 0 ? "key" : "key second" }));
    keys.append(...this.keys);
    caption.append(keys);
    this.canvas = svg("svg", { class: "plot", role: "img" });
    figure.append(caption, this.canvas);
    new ResizeObserver(() => this.draw()).observe(figure);
  }

  show(points, now) {
    this.points = points;
    this.now = now;
    this.draw();
  }

  draw() {
    const width = this.canvas.clientWidth;
    if (!width || this.now === undefined) return;
    const values = this.series.map(({ value }) => this.points.map(value));
    const highest = Math.max(0, ...values.flat().filter((value) => value !== null));
    const marks = ticks(highest, this.least);
    const top = marks.at(-1);
    const x = (at) => width - MARGIN.right - ((this.now - at) / SPAN) * (width - MARGIN.left - MARGIN.right);
    const y = (value) => HEIGHT - MARGIN.bottom - (value / top) * (HEIGHT - MARGIN.top - MARGIN.bottom);

    this.canvas.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    this.canvas.replaceChildren(...this.axes(marks, x, y, width), ...this.takeovers(x), ...this.lines(values, x, y).reverse());
    this.describe(values, highest);
  }

  axes(marks, x, y, width) {
    const horizontal = marks.flatMap((mark, n) => [
      svg("line", { class: n === 0 ? "base" : "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(mark), y2: y(mark) }),
      svg("text", { x: MARGIN.left - 8, y: y(mark) + 4, "text-anchor": "end" }, this.tick(mark)),
    ]);
    const minutes = width > 300 ? [4, 3, 2, 1, 0] : [4, 2, 0];
    const vertical = minutes.map((minutes) =>
      svg("text", { x: x(this.now - minutes * 60_000), y: HEIGHT - 5, "text-anchor": minutes ? "middle" : "end" },
        minutes ? `−${minutes} min` : "now"));
    return [...horizontal, ...vertical];
  }

  /** A vertical line at every change of the term. */
  takeovers(x) {
    return this.points.flatMap((point, n) => {
      const before = this.points[n - 1]?.term;
      if (!before || !point.term || before === point.term) return [];
      const mark = svg("line", { class: "takeover", x1: x(point.time), x2: x(point.time), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom });
      mark.append(svg("title", {}, `term ${point.term} started`));
      return [mark];
    });
  }

  /** In drawing order from the top. */
  lines(values, x, y) {
    return values.flatMap((list, n) => {
      const kind = n === 0 ? "" : " second";
      return this.runs(list).flatMap((run) => {
        const corners = run.map((at) => `${x(this.points[at].time).toFixed(1)},${y(list[at]).toFixed(1)}`);
        const last = run.at(-1);
        const drawn = [svg("path", { class: `line${kind}`, d: `M${corners.join("L")}` })];
        if (values.length === 1 && run.length > 1) {
          const floor = y(0).toFixed(1);
          const [from, to] = [run[0], last].map((at) => x(this.points[at].time).toFixed(1));
          drawn.push(svg("path", { class: "wash", d: `M${from},${floor}L${corners.join("L")}L${to},${floor}Z` }));
        }
        if (last === this.points.length - 1) {
          drawn.unshift(svg("circle", { class: `end${kind}`, cx: x(this.points[last].time), cy: y(list[last]), r: 2.75 }));
        }
        return drawn;
      });
    });
  }

  /** Runs of indices of known points. An unknown value is a gap, not a zero. */
  runs(list) {
    const runs = [];
    list.forEach((value, at) => {
      const apart = at > 0 && this.points[at].time - this.points[at - 1].time > 15_000;
      if (value === null || this.now - this.points[at].time > SPAN) return;
      if (at === 0 || list[at - 1] === null || apart || !runs.length) runs.push([]);
      runs.at(-1).push(at);
    });
    return runs;
  }

  describe(values, highest) {
    const now = values.map((list) => list.at(-1) ?? null);
    const labels = (unknown) =>
      this.series.map(({ label, format }, n) => `${label} ${now[n] === null ? unknown : format(now[n])}`.trim());
    labels("–").forEach((label, n) => { this.keys[n].textContent = label; });
    const most = this.series[0].format(highest);
    this.canvas.setAttribute("aria-label", `${this.title}: now ${labels("unknown").join(", ")}; at most ${most} in the last five minutes`);
  }
}
