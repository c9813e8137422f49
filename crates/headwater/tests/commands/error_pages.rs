//! The pages of `docs/errors/`: one for every reason why a pod halts.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use pipeline::erasure;
use pipeline::producer::HaltReason;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/errors")
}

/// Every page with its title: those of a producer that halts, and those of a consumer that does not start.
fn pages() -> Vec<(&'static str, &'static str)> {
    let halts = halts().map(|(halt, title)| (halt.page(), title));
    halts.into_iter().chain([(erasure::KEY_LOST_PAGE, "The key of the tombstones is lost")]).collect()
}

fn halts() -> [(HaltReason, &'static str); 3] {
    let all = [
        (HaltReason::HistoryLost, "History lost"),
        (HaltReason::Source(String::new()), "The source cannot be captured"),
        (HaltReason::Checkpoint(String::new()), "The checkpoint cannot be used"),
    ];
    // A new variant does not compile here: add it above, and write its page.
    for (halt, _) in &all {
        match halt {
            HaltReason::HistoryLost | HaltReason::Source(_) | HaltReason::Checkpoint(_) => {}
        }
    }
    all
}

#[test]
fn every_halt_has_a_page_with_a_fix() {
    for (page, title) in pages() {
        let path = folder().join(format!("{page}.md"));
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(text.starts_with(&format!("# {page} · {title}\n")), "{page} is called by its halt");
        for part in ["**What happened.**", "**What you see.**", "**What to do"] {
            assert!(text.contains(part), "{page} lacks {part}");
        }
        assert!(text.contains(&format!("`page: {page}`")), "{page} says how it shows in the log");
        let remedy = text.split("**What to do").nth(1).unwrap();
        assert!(
            remedy.lines().filter(|line| line.starts_with("- ")).count() >= 3,
            "{page} has a remedy for each reason"
        );
    }
}

#[test]
fn every_page_belongs_to_a_halt() {
    let files = std::fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let pages = pages().into_iter().map(|(page, _)| format!("{page}.md"));
    assert_eq!(files.collect::<BTreeSet<_>>(), pages.collect::<BTreeSet<_>>());
}

#[test]
fn every_command_on_a_page_exists() {
    let mut seen = 0;
    for (page, _) in pages() {
        let text = std::fs::read_to_string(folder().join(format!("{page}.md"))).unwrap();
        let commands = text.split('`').filter(|part| part.starts_with("headwater "));
        for command in commands {
            let words: Vec<_> = command.split_whitespace().skip(1).take_while(|word| !word.starts_with("--")).collect();
            let help = Command::new(env!("CARGO_BIN_EXE_headwater")).args(&words).arg("--help").output().unwrap();
            let help_text = String::from_utf8_lossy(&help.stdout).into_owned();
            assert!(help.status.success(), "{command}");
            for flag in command.split_whitespace().filter(|word| word.starts_with("--")) {
                assert!(help_text.contains(flag), "{command}: {flag}");
            }
            seen += 1;
        }
    }
    assert!(seen >= 3, "{seen} commands");
}
