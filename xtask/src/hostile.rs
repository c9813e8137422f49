//! `cargo xtask hostile`: gives hostile inputs to real processes and prints, for each, the expected and the observed result.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

use crate::process::{cargo, run};

/// A test that fails early writes no results.
const AREAS: usize = 9;
const TABLE: &str = "docs/hostile-inputs.md";

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Write the observed results to docs/hostile-inputs.md as the expected ones. An input that does harm fails all the same
    #[arg(long)]
    accept: bool,
}

/// The results of one area, as its test wrote them.
struct AreaResults {
    area: String,
    process: String,
    used_mb: String,
    limit_mb: String,
    /// Input, expected, observed.
    rows: Vec<[String; 3]>,
}

pub(crate) fn check(root: &Path, arguments: &Args) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("failed to create a folder for the results")?;
    let runtime = tokio::runtime::Runtime::new().context("failed to start a runtime")?;
    let (mongod, variables) = runtime.block_on(testkit::mongo::SharedMongoServer::start())?;
    let mut command =
        cargo(root, ["nextest", "run", "--workspace", "--locked", "--no-fail-fast", "--filterset", "binary(hostile)"]);
    command.envs(variables).env("HEADWATER_HOSTILE_RESULTS", folder.path()).env_remove("HEADWATER_MONGODB_URI");
    if arguments.accept {
        command.env("HEADWATER_HOSTILE_ACCEPT", "1");
    }
    let result = run(&mut command);
    drop(mongod);
    let areas = read_results(folder.path())?;
    if areas.len() != AREAS {
        bail!("only {} of {AREAS} areas have results", areas.len());
    }
    print!("{}", format_results(&areas));
    if arguments.accept {
        // The count of the old table may have failed; a test that failed for another reason says HARM in its rows.
        if areas.iter().flat_map(|area| &area.rows).any(|row| row[2].starts_with("HARM")) {
            bail!("an input did harm; nothing is accepted");
        }
        return fs::write(root.join(TABLE), format_table(&areas)).context("failed to write the table");
    }
    result
}

fn read_results(folder: &Path) -> anyhow::Result<Vec<AreaResults>> {
    let mut areas = vec![];
    for entry in fs::read_dir(folder).context("failed to list the results")? {
        let path = entry.context("failed to list the results")?.path();
        let text = fs::read_to_string(&path).context("failed to read the results of an area")?;
        let cells = |line: &str| <[String; 3]>::try_from(line.split('\t').map(str::to_owned).collect::<Vec<_>>());
        let mut lines = text.lines().filter_map(|line| cells(line).ok());
        let [process, used_mb, limit_mb] = lines.next().context("an area has no results")?;
        let area = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        areas.push(AreaResults { area, process, used_mb, limit_mb, rows: lines.collect() });
    }
    areas.sort_by(|a, b| a.area.cmp(&b.area));
    Ok(areas)
}

fn format_results(areas: &[AreaResults]) -> String {
    let mut text = "| area | input | expected | observed |\n| --- | --- | --- | --- |\n".to_owned();
    let (mut inputs, mut different) = (0, 0);
    for AreaResults { area, rows, .. } in areas {
        for [input, expected, observed] in rows {
            inputs += 1;
            different += usize::from(expected != observed);
            writeln!(text, "| {area} | {input} | {expected} | {observed} |").expect("a string takes text");
        }
    }
    let memory = areas.iter().map(|it| format!("{}: {} {} of {} MB", it.area, it.process, it.used_mb, it.limit_mb));
    let memory = memory.collect::<Vec<_>>().join(", ");
    text + &format!(
        "\n{inputs} inputs in {} areas, {different} with an unexpected result. Peak memory: {memory}\n",
        areas.len()
    )
}

fn format_table(areas: &[AreaResults]) -> String {
    let inputs: usize = areas.iter().map(|area| area.rows.len()).sum();
    let mut text = format!(
        "# Hostile inputs\n\n\
         `cargo xtask hostile` gives these {inputs} inputs to real processes (a broker, a pod, the commands) and compares each result with this table; the test suite does the same. No input\n\
         ends or blocks a process: after each one, it still answers a probe, or still applies events. `cargo xtask hostile --accept` writes this file.\n\n\
         The most memory that a process may use, also asserted:\n\n"
    );
    for AreaResults { area, process, limit_mb, .. } in areas {
        writeln!(text, "- {area}: {process}, {limit_mb} MB").expect("a string takes text");
    }
    text += "\n| area | input | result |\n| --- | --- | --- |\n";
    for AreaResults { area, rows, .. } in areas {
        for [input, _, observed] in rows {
            writeln!(text, "| {area} | {input} | {observed} |").expect("a string takes text");
        }
    }
    text
}
