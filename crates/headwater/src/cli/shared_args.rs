//! Arguments that several commands have.

use std::path::PathBuf;

use anyhow::bail;

use crate::config::{Config, Deployment};
use crate::exit::ExitReason;

/// The source of the configuration.
#[derive(Debug, clap::Args)]
pub(crate) struct ConfigArgs {
    /// Configuration file; default: `HEADWATER_CONFIG`, then `./headwater.yaml`
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Override one key of file and environment, for example `--set producer.body=json`; can be repeated
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,

    /// The pipeline, if the configuration has several
    #[arg(long, value_name = "NAME")]
    pub(crate) pipeline: Option<String>,
}

impl ConfigArgs {
    /// The configuration of one pipeline.
    pub(crate) fn load(&self) -> anyhow::Result<Config> {
        Config::from_process(self.config.as_deref(), &self.set, self.pipeline.as_deref())
    }

    /// All pipelines, or the one that was named.
    pub(crate) fn load_all(&self) -> anyhow::Result<Deployment> {
        Deployment::from_process(self.config.as_deref(), &self.set)?.only(self.pipeline.as_deref())
    }
}

/// The flag of commands that can lose events.
#[derive(Debug, clap::Args)]
pub(crate) struct ConfirmArgs {
    /// Do it without asking for confirmation
    #[arg(long)]
    yes: bool,
}

impl ConfirmArgs {
    /// Fails without `--yes`, and says what the command would do.
    pub(crate) fn require(&self, consequence: &str) -> anyhow::Result<()> {
        if !self.yes {
            bail!(ExitReason::Usage.with_message(format!("this {consequence}; add --yes to do it")));
        }
        Ok(())
    }
}
