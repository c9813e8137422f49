//! Every bench and soak program explains its arguments and refuses wrong ones.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Every program in `src/bin`, as built beside the one that cargo names.
fn programs() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_BIN_EXE_audit")).parent().expect("programs are in a folder");
    let sources = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo names the package");
    let sources = Path::new(&sources).join("src/bin").read_dir().expect("the package has programs");
    let names = sources.map(|source| source.expect("a readable folder").path());
    names.map(|source| folder.join(source.file_stem().expect("a file has a name"))).collect()
}

fn run(program: &Path, argument: &str) -> (Output, String) {
    let output = Command::new(program).arg(argument).output().expect("the program starts");
    let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr[..]].concat()).into_owned();
    (output, text)
}

#[test]
fn help_names_every_argument_of_a_program() {
    for program in programs() {
        let (output, text) = run(&program, "--help");
        assert!(output.status.success(), "{}: {text}", program.display());
        assert!(text.contains("Usage: "), "{}: {text}", program.display());
        // An option without a description ends after its name.
        let undescribed = text.lines().find(|line| line.starts_with("      --") && !line.trim().contains("  "));
        assert_eq!(undescribed, None, "{}: {text}", program.display());
    }
}

#[test]
fn an_unknown_option_is_refused_with_exit_code_2() {
    for program in programs() {
        let (output, text) = run(&program, "--no-such-option");
        assert_eq!(output.status.code(), Some(2), "{}: {text}", program.display());
        assert!(text.contains("--no-such-option") && !text.contains("panicked"), "{}: {text}", program.display());
    }
}

#[test]
fn a_number_that_is_none_is_refused_with_exit_code_2() {
    for program in programs() {
        let name = program.file_stem().expect("a program has a name").to_string_lossy();
        let argument = if name.starts_with("soak-") { "--rounds=many" } else { "many" };
        let (output, text) = run(&program, argument);
        assert_eq!(output.status.code(), Some(2), "{}: {text}", program.display());
        assert!(text.contains("many") && !text.contains("panicked"), "{}: {text}", program.display());
    }
}
