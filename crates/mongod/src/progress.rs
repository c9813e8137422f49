//! Telling a person how far a fetch has come: a bar on a terminal, plain lines elsewhere, silence where asked.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Where the crate says what it is doing to someone who waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    Bar,
    Lines,
    Silent,
}

impl Progress {
    /// A bar if someone watches standard error, else lines.
    pub fn to_stderr() -> Self {
        if std::io::stderr().is_terminal() { Self::Bar } else { Self::Lines }
    }

    pub(crate) fn say(self, line: &str) {
        if self != Self::Silent {
            eprintln!("{line}");
        }
    }

    pub(crate) fn download(self, what: &str, total_bytes: u64) -> Download {
        let bar = (self == Self::Bar).then(|| draw(what, total_bytes));
        if self == Self::Lines {
            eprintln!("{what}: {} to fetch", megabytes(total_bytes));
        }
        Download { kind: self, what: what.to_owned(), total_bytes, bar, quarters_said: 0 }
    }
}

/// One download; it only ever shows bytes that have really landed.
pub(crate) struct Download {
    kind: Progress,
    what: String,
    total_bytes: u64,
    bar: Option<ProgressBar>,
    quarters_said: u64,
}

impl Download {
    pub(crate) fn landed(&mut self, bytes: u64) {
        let bytes = bytes.min(self.total_bytes);
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
        }
        let quarters = (bytes * 4).checked_div(self.total_bytes).unwrap_or(0);
        if self.kind == Progress::Lines && quarters > self.quarters_said {
            self.quarters_said = quarters;
            eprintln!("{}: {} of {}", self.what, megabytes(bytes), megabytes(self.total_bytes));
        }
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn draw(what: &str, total_bytes: u64) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}")
        .expect("the template is a constant that parses")
        .progress_chars("=> ");
    let bar = ProgressBar::with_draw_target(Some(total_bytes), ProgressDrawTarget::stderr());
    bar.set_style(style);
    bar.set_message(what.to_owned());
    bar
}

fn megabytes(bytes: u64) -> String {
    format!("{} MB", bytes / 1_000_000)
}
