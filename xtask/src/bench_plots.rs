//! Plots of stored results, as SVG for light and dark pages.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::bench_results;

const WIDTH: f64 = 720.0;
const BAR: f64 = 26.0;
const GAP: f64 = 12.0;
/// Space for the names of the bars.
const LEFT: f64 = 190.0;
/// Space for the figures behind the bars.
const RIGHT: f64 = 120.0;
const TOP: f64 = 44.0;

#[derive(clap::Args)]
pub(crate) struct PlotArgs {
    /// The folder of results [default: target/bench]
    #[arg(long)]
    results: Option<PathBuf>,
    /// Where the plots are written [default: docs/figures]
    #[arg(long)]
    into: Option<PathBuf>,
}

/// Writes every plot for which there is a result.
pub(crate) fn draw(root: &Path, arguments: &PlotArgs) -> anyhow::Result<()> {
    let results = arguments.results.clone().unwrap_or_else(|| root.join(bench_results::FOLDER));
    let into = arguments.into.clone().unwrap_or_else(|| root.join("docs/figures"));
    fs::create_dir_all(&into).with_context(|| format!("failed to create `{}`", into.display()))?;
    let mut drawn = 0;
    for (bench, result) in bench_results::read(&results)? {
        for plot in plots(&bench, &result) {
            for theme in [&LIGHT, &DARK] {
                let file = into.join(format!("{}-{}.svg", plot.name, theme.name));
                fs::write(&file, plot.to_svg(theme))
                    .with_context(|| format!("failed to write `{}`", file.display()))?;
                println!("{}", file.display());
                drawn += 1;
            }
        }
    }
    if drawn == 0 {
        bail!("`{}` has no result that can be drawn", results.display());
    }
    Ok(())
}

struct Theme {
    name: &'static str,
    text: &'static str,
    muted: &'static str,
    background: &'static str,
    bars: [&'static str; 3],
}

const LIGHT: Theme = Theme {
    name: "light",
    text: "#1f2328",
    muted: "#656d76",
    background: "#ffffff",
    bars: ["#0b6bcb", "#1a7f64", "#9a6700"],
};
const DARK: Theme = Theme {
    name: "dark",
    text: "#e6edf3",
    muted: "#8d96a0",
    background: "#0d1117",
    bars: ["#4c9dff", "#3fb996", "#d2a03c"],
};

/// Horizontal bars; a bar may have several parts.
#[derive(Debug, PartialEq)]
struct BarPlot {
    name: String,
    title: String,
    unit: &'static str,
    /// Rates of different systems differ by orders of magnitude.
    is_logarithmic: bool,
    /// The names of the parts, if there are several.
    parts: Vec<&'static str>,
    bars: Vec<(String, Vec<f64>)>,
}

fn plots(bench: &str, result: &Value) -> Vec<BarPlot> {
    match bench {
        "end-to-end" => end_to_end(result),
        "scaling" => scaling(result),
        _ => vec![],
    }
}

fn end_to_end(result: &Value) -> Vec<BarPlot> {
    let figure = |name: &str| result.get(name).and_then(Value::as_f64);
    let bars = |names: &[(&str, &str)]| -> Vec<(String, Vec<f64>)> {
        let found = names.iter().filter_map(|(name, label)| Some(((*label).to_owned(), vec![figure(name)?])));
        found.collect()
    };
    let rates =
        [("rate", "Headwater"), ("nestjs_tuned_per_s", "NestJS, tuned"), ("nestjs_single_per_s", "NestJS, one by one")];
    let cpu =
        [("cpu_us_pod", "pod"), ("cpu_us_broker", "broker"), ("cpu_us_mongod", "mongod"), ("cpu_us_writer", "writer")];
    let takeover = [
        ("headwater_crash_s", "Headwater, crash"),
        ("nestjs_crash_s", "NestJS, crash"),
        ("headwater_stop_s", "Headwater, stop"),
        ("nestjs_stop_s", "NestJS, stop"),
    ];
    let plot = |name: &str, title: &str, unit, is_logarithmic, bars| BarPlot {
        name: name.to_owned(),
        title: title.to_owned(),
        unit,
        is_logarithmic,
        parts: vec![],
        bars,
    };
    let all = [
        plot("end-to-end-rate", "Events per second, insert to read model (logarithmic)", "/s", true, bars(&rates)),
        plot("end-to-end-cpu", "CPU time per event, by process", "us", false, bars(&cpu)),
        plot("takeover", "Longest time without a published event, ttl 15 s", "s", false, bars(&takeover)),
    ];
    all.into_iter().filter(|plot| !plot.bars.is_empty()).collect()
}

fn scaling(result: &Value) -> Vec<BarPlot> {
    let cells = result.get("cells").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut plots: Vec<BarPlot> = vec![];
    for cell in cells {
        let (Some(dimension), Some(value)) = (cell["dimension"].as_str(), cell["value"].as_u64()) else { continue };
        let name = format!("scaling-{dimension}");
        if plots.last().is_none_or(|plot| plot.name != name) {
            plots.push(BarPlot {
                name,
                title: format!("CPU time per event by {}", dimension.replace('-', " ")),
                unit: "us",
                is_logarithmic: false,
                parts: vec!["pods", "broker", "mongod"],
                bars: vec![],
            });
        }
        let cost = |name: &str| cell[name].as_f64().unwrap_or_default();
        let costs = vec![cost("cpu_us_pod"), cost("cpu_us_broker"), cost("cpu_us_mongod")];
        plots.last_mut().expect("pushed above").bars.push((grouped(value), costs));
    }
    plots
}

impl BarPlot {
    fn to_svg(&self, theme: &Theme) -> String {
        let legend = if self.parts.is_empty() { 0.0 } else { 24.0 };
        let height = TOP + legend + self.bars.len() as f64 * (BAR + GAP) + GAP;
        let Theme { text, muted, background, .. } = theme;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" role=\"img\" \
             font-family=\"system-ui, sans-serif\" font-size=\"14\">\n<title>{title}</title>\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" rx=\"8\" fill=\"{background}\"/>\n\
             <text x=\"16\" y=\"28\" font-size=\"16\" font-weight=\"600\" fill=\"{text}\">{title}</text>\n",
            title = self.title
        );
        for (part, name) in self.parts.iter().enumerate() {
            let (x, y, colour) = (LEFT + part as f64 * 110.0, TOP + 6.0, theme.bars[part % theme.bars.len()]);
            let _ = writeln!(
                svg,
                "<rect x=\"{x}\" y=\"{y}\" width=\"12\" height=\"12\" rx=\"2\" fill=\"{colour}\"/><text x=\"{}\" y=\"{}\" fill=\"{muted}\">{name}</text>",
                x + 18.0,
                y + 11.0
            );
        }
        let most = self.bars.iter().map(|(_, parts)| parts.iter().sum::<f64>()).fold(0.0, f64::max);
        for (row, (name, parts)) in self.bars.iter().enumerate() {
            let y = TOP + legend + row as f64 * (BAR + GAP);
            let middle = y + BAR / 2.0 + 5.0;
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{middle}\" text-anchor=\"end\" fill=\"{text}\">{name}</text>",
                LEFT - 12.0
            );
            let total: f64 = parts.iter().sum();
            let mut x = LEFT;
            for (part, value) in parts.iter().enumerate() {
                let width = self.length(total, most) * value / total.max(f64::MIN_POSITIVE);
                let colour = theme.bars[part % theme.bars.len()];
                let _ = writeln!(
                    svg,
                    "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BAR}\" fill=\"{colour}\"/>"
                );
                x += width;
            }
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{middle}\" fill=\"{muted}\">{} {}</text>",
                x + 8.0,
                shown(total),
                self.unit
            );
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn length(&self, value: f64, most: f64) -> f64 {
        let share = if self.is_logarithmic { (1.0 + value).ln() / (1.0 + most).ln() } else { value / most };
        (WIDTH - LEFT - RIGHT) * if share.is_finite() { share } else { 0.0 }
    }
}

/// Enough digits to compare.
fn shown(value: f64) -> String {
    if value < 100.0 { format!("{value:.1}") } else { grouped(value.round() as u64) }
}

/// With commas between thousands.
fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_longest_bar_fills_the_plot_and_others_are_in_proportion() {
        let result = json!({ "cpu_us_pod": 10.0, "cpu_us_mongod": 40.0 });
        let plots = plots("end-to-end", &result);
        assert_eq!(plots.len(), 1, "a plot without a figure is left out: {plots:?}");
        assert_eq!((plots[0].length(40.0, 40.0), plots[0].length(10.0, 40.0)), (410.0, 102.5));
        let svg = plots[0].to_svg(&DARK);
        assert!(svg.contains("width=\"410.0\"") && svg.contains("width=\"102.5\"") && svg.contains(DARK.background));
    }

    #[test]
    fn each_dimension_of_scaling_has_a_plot_of_its_own() {
        let cell = |dimension: &str, value: u64| json!({ "dimension": dimension, "value": value, "cpu_us_pod": 1.0 });
        let result = json!({ "cells": [cell("pods", 1), cell("pods", 5), cell("size", 1_000_000)] });
        let found = plots("scaling", &result);
        assert_eq!(
            found.iter().map(|plot| (&*plot.name, plot.bars.len())).collect::<Vec<_>>(),
            [("scaling-pods", 2), ("scaling-size", 1)]
        );
        assert_eq!(found[1].bars[0].0, "1,000,000");
    }
}
