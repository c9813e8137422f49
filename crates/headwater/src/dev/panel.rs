//! What a person sees: lines that stay, and on a terminal one below them that is written anew. Where nobody looks any more, everything goes on.

use std::io::IsTerminal;

use tokio::time::Instant;

use crate::output;

pub(super) struct Panel {
    terminal: bool,
    /// A status line is on the screen, and the cursor at its end.
    open: bool,
}

impl Default for Panel {
    fn default() -> Self {
        Self { terminal: std::io::stdout().is_terminal(), open: false }
    }
}

impl Panel {
    pub(super) fn say(&mut self, line: &str) {
        self.clear();
        output::try_print(format_args!("{line}\n"));
    }

    pub(super) fn step(&mut self, what: &str, began: Instant) {
        self.say(&format!("{what} is up ({:.1} s)", began.elapsed().as_secs_f64()));
    }

    pub(super) fn status(&mut self, line: &str) {
        self.clear();
        if self.terminal {
            // A line that is too long is cut by the terminal, not wrapped: a wrapped one could not be cleared.
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
