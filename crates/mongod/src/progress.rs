//! Shows the progress of a download: a bar on a terminal, lines elsewhere, or nothing.

use std::io::IsTerminal;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle as BarStyle};

/// How to show progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProgressStyle {
    Bar,
    Lines,
    Silent,
}

impl ProgressStyle {
    /// A bar if standard error is a terminal, else lines.
    pub fn to_stderr() -> Self {
        if std::io::stderr().is_terminal() { Self::Bar } else { Self::Lines }
    }

    pub(crate) fn print(self, line: &str) {
        if self != Self::Silent {
            eprintln!("{line}");
        }
    }

    pub(crate) fn start_download(self, what: &str, total_bytes: u64) -> DownloadProgress {
        let bar = (self == Self::Bar).then(|| draw(what, total_bytes));
        if self == Self::Lines {
            eprintln!("{what}: downloading {}", megabytes(total_bytes));
        }
        DownloadProgress { style: self, what: what.to_owned(), total_bytes, bar, reported_quarters: 0 }
    }
}

/// One download. Shows only bytes that are on disk.
pub(crate) struct DownloadProgress {
    style: ProgressStyle,
    what: String,
    total_bytes: u64,
    bar: Option<ProgressBar>,
    reported_quarters: u64,
}

impl DownloadProgress {
    pub(crate) fn set_downloaded(&mut self, bytes: u64) {
        let bytes = bytes.min(self.total_bytes);
        if let Some(bar) = &self.bar {
            bar.set_position(bytes);
        }
        let quarters = (bytes * 4).checked_div(self.total_bytes).unwrap_or(0);
        if self.style == ProgressStyle::Lines && quarters > self.reported_quarters {
            self.reported_quarters = quarters;
            eprintln!("{}: {} of {}", self.what, megabytes(bytes), megabytes(self.total_bytes));
        }
    }
}

impl Drop for DownloadProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn draw(what: &str, total_bytes: u64) -> ProgressBar {
    let style = BarStyle::with_template("{msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec}")
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
