//! One run as a page: faults, leaders, backlog and throughput over time. Plain HTML with drawings, without scripts.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::{fs, io};

use testkit::nemesis::ClusterFault;
use tokio::time::Instant;

use super::{ChaosResult, TimelineSample};

const WIDTH: f64 = 1_100.0;
/// Room for the names of faults.
const LEFT: f64 = 290.0;
const ROW: f64 = 16.0;
const CHART: f64 = 120.0;
/// Samples over which a rate is taken: one second.
const RATE_SAMPLES: usize = 4;
const COLOURS: usize = 5;

const STYLE: &str = "
:root { color-scheme: light dark; --text: #1d2530; --soft: #66707d; --line: #d7dce2; --ground: #fff; --fault: #c2410c; --written: #64748b; --applied: #0f766e;
  --p0: #2563eb; --p1: #7c3aed; --p2: #db2777; --p3: #ca8a04; --p4: #0891b2; }
@media (prefers-color-scheme: dark) { :root { --text: #e6eaf0; --soft: #98a3b1; --line: #333c47; --ground: #14181d; --fault: #fb923c; --written: #94a3b8; --applied: #2dd4bf;
  --p0: #60a5fa; --p1: #a78bfa; --p2: #f472b6; --p3: #facc15; --p4: #22d3ee; } }
body { font: 14px/1.5 system-ui, sans-serif; color: var(--text); background: var(--ground); max-width: 1180px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1rem; margin-top: 2rem; }
table { border-collapse: collapse; } th, td { text-align: left; padding: 2px 16px 2px 0; border-bottom: 1px solid var(--line); }
svg { width: 100%; height: auto; overflow: visible; } svg text { font: 11px system-ui, sans-serif; fill: var(--soft); }
.bad { color: var(--fault); font-weight: 600; } .grid { stroke: var(--line); stroke-width: 1; }
.fault { fill: var(--fault); } .written { stroke: var(--written); fill: none; } .applied { stroke: var(--applied); fill: none; stroke-width: 1.5; }
.backlog { fill: var(--applied); fill-opacity: .25; stroke: var(--applied); } pre { overflow-x: auto; }
";

/// Writes the page.
pub fn write_report(result: &ChaosResult, path: &Path) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, page(result))
}

fn page(result: &ChaosResult) -> String {
    let (violations, acknowledged) = (result.violations(), result.report.counts.acknowledged);
    let verdict = match violations.is_empty() {
        true => "No guarantee was broken.".to_owned(),
        false => {
            let kinds: Vec<_> = violations.iter().map(ToString::to_string).collect();
            format!("<span class=bad>Broken: {}</span>", kinds.join(", "))
        }
    };
    let mut html = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'><title>Headwater chaos, seed {seed}</title><style>{STYLE}</style>
<h1>Headwater chaos, seed {seed}</h1>
<p>{mongo:?}, {pods} pods, {seconds:.0} s. {acknowledged} acknowledged events. {faults} faults, {in_flight} of them while events were in flight. {terms} terms. {verdict}</p>",
        seed = result.seed,
        mongo = result.mongo,
        pods = result.pods,
        seconds = result.took.as_secs_f64(),
        faults = result.faults.injected(),
        in_flight = result.faults.in_flight(),
        terms = result.fence.terms(),
    );
    if let (Some(first), Some(last)) = (result.timeline.first(), result.timeline.last()) {
        let axis = TimeAxis { from: first.at, seconds: (last.at - first.at).as_secs_f64().max(1.0) };
        push(&mut html, "Leaders", &leaders(&result.timeline, axis));
        push(&mut html, "Backlog: acknowledged events that are not applied", &backlog(&result.timeline, axis));
        push(&mut html, "Events per second: written (grey) and applied", &throughput(&result.timeline, axis));
        push(&mut html, "Faults", &faults(result, axis));
    }
    html.push_str(&counts(result));
    let _ = write!(html, "<h2>Result</h2><pre>{}</pre></html>", escape(&result.to_string()));
    html
}

fn push(html: &mut String, title: &str, drawing: &str) {
    let _ = write!(html, "<h2>{title}</h2>{drawing}");
}

#[derive(Clone, Copy)]
struct TimeAxis {
    from: Instant,
    seconds: f64,
}

impl TimeAxis {
    fn x(self, at: Instant) -> f64 {
        let seconds = at.saturating_duration_since(self.from).as_secs_f64().min(self.seconds);
        LEFT + seconds / self.seconds * (WIDTH - LEFT)
    }

    /// A drawing of this height, with a line for every tenth of the time.
    fn drawing(self, height: f64, content: &str) -> String {
        let mut svg = format!("<svg viewBox='0 0 {WIDTH} {}' role=img>", height + 20.0);
        for tenth in 0..=10 {
            let x = LEFT + f64::from(tenth) / 10.0 * (WIDTH - LEFT);
            let seconds = self.seconds * f64::from(tenth) / 10.0;
            let _ = write!(svg, "<line class=grid x1={x:.1} x2={x:.1} y1=0 y2={height} />");
            let _ = write!(svg, "<text x={x:.1} y={} text-anchor=middle>{seconds:.0} s</text>", height + 14.0);
        }
        svg + content + "</svg>"
    }
}

fn leaders(samples: &[TimelineSample], axis: TimeAxis) -> String {
    let mut names: Vec<&str> =
        samples.iter().filter_map(|sample| sample.leader.as_ref()).map(|(name, _)| &**name).collect();
    names.sort_unstable();
    names.dedup();
    let mut bars = String::new();
    for (row, name) in names.iter().enumerate() {
        let _ = write!(
            bars,
            "<text x={} y={} text-anchor=end>{}</text>",
            LEFT - 8.0,
            row as f64 * ROW + 12.0,
            escape(name)
        );
    }
    for terms in samples.chunk_by(|one, other| one.leader == other.leader) {
        let Some((name, term)) = &terms[0].leader else { continue };
        let row = names.iter().position(|known| known == name).unwrap_or_default();
        let (from, to) = (axis.x(terms[0].at), axis.x(terms[terms.len() - 1].at));
        let _ = write!(
            bars,
            "<rect x={from:.1} y={:.1} width={:.1} height={} fill='var(--p{})'><title>{} leads in term {term}</title></rect>",
            row as f64 * ROW + 2.0,
            (to - from).max(1.5),
            ROW - 4.0,
            row % COLOURS,
            escape(name)
        );
    }
    axis.drawing(names.len() as f64 * ROW, &bars)
}

fn backlog(samples: &[TimelineSample], axis: TimeAxis) -> String {
    let values: Vec<_> =
        samples.iter().map(|sample| (sample.at, sample.acknowledged.saturating_sub(sample.applied) as f64)).collect();
    let highest = values.iter().map(|(_, value)| *value).fold(1.0, f64::max);
    let area = format!("M{LEFT} {CHART} {} L{WIDTH} {CHART} Z", line(&values, highest, axis).replacen('M', "L", 1));
    let label = format!("<text x={} y=10 text-anchor=end>{highest:.0} events</text>", LEFT - 8.0);
    axis.drawing(CHART, &format!("{label}<path class=backlog d='{area}' />"))
}

fn throughput(samples: &[TimelineSample], axis: TimeAxis) -> String {
    let rate = |count: fn(&TimelineSample) -> u64| -> Vec<(Instant, f64)> {
        let seconds = |one: &TimelineSample, other: &TimelineSample| (other.at - one.at).as_secs_f64().max(0.001);
        let rate = |pair: &[TimelineSample]| {
            let (first, last) = (&pair[0], &pair[pair.len() - 1]);
            (last.at, count(last).saturating_sub(count(first)) as f64 / seconds(first, last))
        };
        samples.windows(RATE_SAMPLES + 1).map(rate).collect()
    };
    let (written, applied) = (rate(|sample| sample.acknowledged), rate(|sample| sample.applied));
    let highest = written.iter().chain(&applied).map(|(_, value)| *value).fold(1.0, f64::max);
    let label = format!("<text x={} y=10 text-anchor=end>{highest:.0}/s</text>", LEFT - 8.0);
    let lines = [("written", written), ("applied", applied)];
    let lines =
        lines.iter().map(|(class, values)| format!("<path class={class} d='{}' />", line(values, highest, axis)));
    axis.drawing(CHART, &(label + &lines.collect::<String>()))
}

fn line(values: &[(Instant, f64)], highest: f64, axis: TimeAxis) -> String {
    let point =
        |(at, value): &(Instant, f64)| format!("{:.1} {:.1}", axis.x(*at), CHART - value / highest * (CHART - 4.0));
    let points: Vec<_> = values.iter().map(point).collect();
    if points.is_empty() { String::new() } else { format!("M{}", points.join(" L")) }
}

fn faults(result: &ChaosResult, axis: TimeAxis) -> String {
    let mut rows: BTreeMap<ClusterFault, usize> =
        result.faults.log.iter().map(|injected| (injected.fault, 0)).collect();
    rows.values_mut().enumerate().for_each(|(row, place)| *place = row);
    let mut bars = String::new();
    for (fault, row) in &rows {
        let _ = write!(bars, "<text x={} y={} text-anchor=end>{fault}</text>", LEFT - 8.0, *row as f64 * ROW + 12.0);
    }
    for injected in &result.faults.log {
        let (from, to, y) = (axis.x(injected.at), axis.x(injected.until), rows[&injected.fault] as f64 * ROW + 2.0);
        let seconds = injected.at.saturating_duration_since(axis.from).as_secs_f64();
        let _ = write!(
            bars,
            "<rect class=fault x={from:.1} y={y:.1} width={:.1} height={}><title>{} at {seconds:.1} s, {} events in flight</title></rect>",
            (to - from).max(2.5),
            ROW - 4.0,
            injected.fault,
            injected.in_flight
        );
    }
    axis.drawing(rows.len() as f64 * ROW, &bars)
}

fn counts(result: &ChaosResult) -> String {
    let mut table = "<h2>Faults by kind</h2><table><tr><th>fault<th>injected<th>while events were in flight<th>no target<th>effects".to_owned();
    for (fault, counts) in &result.faults.faults {
        let _ = write!(
            table,
            "<tr><td>{fault}<td>{}<td>{}<td>{}<td>{}",
            counts.injected, counts.in_flight, counts.skipped, counts.effects
        );
    }
    table + "</table>"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
