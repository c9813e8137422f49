//! `docs/guarantees.md`: every test that it names exists, and every planted one asserts the kind of violation that the page says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What the page calls a violation, and what the code of its test must contain.
const KINDS: [(&str, &str); 10] = [
    ("lost", "::Lost"),
    ("duplicated", "::Duplicated"),
    ("out of order", "::OutOfOrder"),
    ("fence breached", "::FenceBreached"),
    ("read model differs", "::ReadModelDiffers"),
    ("wrongly parked", "::WronglyParked"),
    ("stalled", "::Stalled"),
    ("differences", "differences.is_empty()"),
    ("events missed", "aggregates missed"),
    ("does not stop", "did not stop"),
];
/// Shorter names in backticks are keys, crates and words.
const FEWEST_WORDS: usize = 4;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn page() -> String {
    std::fs::read_to_string(root().join("docs/guarantees.md")).expect("the page")
}

/// The body of every test function, by its name.
fn tests() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for folder in ["crates", "tests/python"] {
        collect(&root().join(folder), &mut found);
    }
    found
}

fn collect(folder: &Path, found: &mut BTreeMap<String, String>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source file");
            // A test function follows its attribute; `tests!`-like macros are not used.
            let parts = ["#[tokio::test", "#[test]"].into_iter().flat_map(|attribute| text.split(attribute).skip(1));
            for part in parts {
                if let Some((name, body)) = part.split_once("fn ").and_then(|(_, rest)| rest.split_once('(')) {
                    let body = body.split("\n}\n").next().unwrap_or(body);
                    found.insert(name.to_owned(), body.to_owned());
                }
            }
        }
    }
}

fn is_test_name(word: &str) -> bool {
    let is_snake = word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
    is_snake && word.split('_').count() >= FEWEST_WORDS
}

/// Every name in backticks that looks like a test, with the text behind it.
fn named(page: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = page.split('`').collect();
    let pairs = parts.iter().enumerate().filter(|(index, word)| index % 2 == 1 && is_test_name(word));
    pairs.map(|(index, word)| (*word, parts.get(index + 1).copied().unwrap_or_default())).collect()
}

#[test]
fn every_test_named_in_the_guarantees_exists() {
    let (page, tests) = (page(), tests());
    let named = named(&page);
    assert!(named.len() > 50, "the page names its tests: {named:?}");
    // Metrics and failpoints have such names too, but the page does not mention any.
    let missing: Vec<_> = named.iter().map(|(name, _)| *name).filter(|name| !tests.contains_key(*name)).collect();
    assert!(missing.is_empty(), "no such test: {missing:?}");
}

#[test]
fn every_planted_test_asserts_its_kind() {
    let (page, tests) = (page(), tests());
    let mut planted = 0;
    for (name, behind) in named(&page) {
        let Some(kind) = behind.strip_prefix(" (planted: ").and_then(|rest| rest.split(')').next()) else { continue };
        let (_, needle) = KINDS.iter().find(|(word, _)| *word == kind).unwrap_or_else(|| panic!("{name}: `{kind}`"));
        assert!(tests[name].contains(needle), "`{name}` does not assert `{kind}`");
        planted += 1;
    }
    assert_eq!(planted, page.matches("(planted: ").count(), "a planted test has its kind right behind its name");
    assert!(planted >= 23, "{planted} planted tests");
    let unnamed = page.matches("(planted)").count();
    assert_eq!(unnamed, 0, "a planted test names its kind: `name` (planted: lost)");
}
