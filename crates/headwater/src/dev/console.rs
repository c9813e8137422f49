//! Console output: lines, and on a terminal one status line below them that is updated in place. A closed output is ignored.

use std::io::IsTerminal;

use tokio::time::Instant;

use crate::output;

pub(super) struct Console {
    terminal: bool,
    /// A status line is on the screen, with the cursor at its end.
    open: bool,
}

impl Default for Console {
    fn default() -> Self {
        Self { terminal: std::io::stdout().is_terminal(), open: false }
    }
}

impl Console {
    pub(super) fn print_line(&mut self, line: &str) {
        self.clear();
        output::try_print(format_args!("{line}\n"));
    }

    pub(super) fn print_ready(&mut self, what: &str, began: Instant) {
        self.print_line(&format!("{what} ready ({:.1} s)", began.elapsed().as_secs_f64()));
    }

    pub(super) fn set_status(&mut self, line: &str) {
        self.clear();
        if self.terminal {
            // No line wrap: the terminal cuts a long line, because a wrapped one could not be cleared.
            output::try_print(format_args!("\x1b[?7l{line}\x1b[?7h"));
            self.open = true;
        } else {
            output::try_print(format_args!("{line}\n"));
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.open) {
            output::try_print("\r\x1b[2K");
        }
    }
}
