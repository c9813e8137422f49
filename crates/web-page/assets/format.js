// Formats numbers, durations and times for display.

export const isKnown = (value) => value !== null && value !== undefined;
export const grouped = (value, digits = 0) =>
  value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });

/** A number with two decimals below 1, one below 10, and none above. */
export const figure = (value) => grouped(value, value !== 0 && Math.abs(value) < 10 ? (Math.abs(value) < 1 ? 2 : 1) : 0);

export const rate = (value) => figure(value);
export const plural = (count, one, many = `${one}s`) => `${grouped(count)} ${count === 1 ? one : many}`;

/** [number, unit] of a short duration. */
export function shortDuration(seconds) {
  if (seconds < 0.9995) return [grouped(Math.round(seconds * 1_000)), "ms"];
  if (seconds < 100) return [figure(seconds), "s"];
  return longDuration(seconds);
}

/** [number, unit] of a lag, in whole seconds. */
export const lagDuration = (seconds) => (seconds < 100 ? [grouped(Math.max(0, seconds)), "s"] : longDuration(seconds));

/** [number, unit] of a long duration. */
export function longDuration(seconds) {
  if (seconds < 60) return [grouped(Math.floor(seconds)), "s"];
  if (seconds < 3_600) return [grouped(Math.floor(seconds / 60)), "min"];
  if (seconds < 100 * 3_600) return [figure(seconds / 3_600), "h"];
  return [figure(seconds / 86_400), "days"];
}

/** A long duration in two units: 3 h 12 min. */
export function twoUnits(seconds) {
  const [s, m, h, d] = [seconds % 60, (seconds / 60) % 60, (seconds / 3_600) % 24, seconds / 86_400].map(Math.floor);
  if (d) return `${plural(d, "day")} ${h} h`;
  if (h) return `${h} h ${m} min`;
  if (m) return `${m} min ${s} s`;
  return `${s} s`;
}

export const joinUnit = ([number, unit]) => `${number} ${unit}`;
export const ago = (seconds) => (seconds < 1.5 ? "now" : `${twoUnits(seconds)} ago`);
export const clockTime = (time) => new Date(time).toLocaleTimeString("en-GB");
export const dateTime = (time) => {
  const date = new Date(time);
  const today = date.toDateString() === new Date().toDateString();
  return today ? clockTime(time) : `${date.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${clockTime(time)}`;
};

/** A size in bytes for people. */
export function bytes(size) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; size >= 1_024 && unit < units.length - 1; unit += 1) size /= 1_024;
  return `${unit ? figure(size) : grouped(size)} ${units[unit]}`;
}
