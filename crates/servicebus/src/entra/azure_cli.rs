//! The login of the Azure CLI, for development: `az account get-access-token`.

use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use super::Error;
use super::reply::{IssuedToken, read_token};

/// Asks the CLI for a token. `now`: time since the Unix epoch.
pub(super) async fn request_token(tenant: Option<&str>, audience: &str, now: Duration) -> Result<IssuedToken, Error> {
    let failed = |what: String| Error::AzureCli { what };
    let mut command = Command::new("az");
    command.args(["account", "get-access-token", "--output", "json", "--resource", audience]);
    command.args(tenant.iter().flat_map(|tenant| ["--tenant", tenant]));
    // A caller that gives up also ends the program.
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await;
    let output = output
        .map_err(|error| failed(format!("failed to run `az` ({error}); install it, or use another credential")))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("no output");
        return Err(failed(format!("{}; run `az login`", line.trim())));
    }
    read_token(&output.stdout, now)
        .ok_or_else(|| failed("its output contains no valid token; run `az login`".to_owned()))
}
