//! Commands of an operator, run beside the pods: with a configuration that reaches MongoDB and the broker directly.

use std::path::{Path, PathBuf};
use std::time::Duration;

use local_cluster::process::{Process, Program};
use tokio::time::{Instant, sleep};

use super::config::TestClusterConfig;
use super::{ClusterBroker, ClusterMongo, Error, TestCluster, write_file};

/// A command that takes longer has no primary, or hangs.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandResult {
    pub arguments: Vec<String>,
    /// `None`: a signal ended it, or it did not end in time and was killed.
    pub exit_code: Option<i32>,
    /// Its last lines of output.
    pub tail: String,
}

impl CommandResult {
    pub fn is_success(&self) -> bool {
        self.exit_code == Some(0)
    }
}

#[derive(Debug)]
pub(super) struct OperatorCommands {
    program: Program,
    config: PathBuf,
    running: Vec<(Vec<String>, Process, Instant)>,
    ended: Vec<CommandResult>,
}

impl OperatorCommands {
    pub(super) fn new(
        config: &TestClusterConfig,
        mongo: &ClusterMongo,
        broker: &ClusterBroker,
        folder: &Path,
    ) -> Result<Self, Error> {
        let file = folder.join("operator.yaml");
        write_file(&file, &config.pod_config(mongo.uri(), mongo.source(), mongo.coordination(), broker.endpoint()))?;
        let program = Program::new(&config.binary).named("operator").env("RUST_LOG", "off");
        Ok(Self { program, config: file, running: vec![], ended: vec![] })
    }

    fn start(&mut self, arguments: &[&str]) -> Result<(), Error> {
        let program = self.program.clone().args(arguments).args([Path::new("--config"), &self.config]);
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        self.running.push((arguments, program.start()?, Instant::now()));
        Ok(())
    }

    /// Moves commands that have ended to the results; kills those that take too long.
    async fn collect(&mut self) {
        for (arguments, process, started) in std::mem::take(&mut self.running) {
            let exit_code = match process.exit_status() {
                Some(status) => status.code(),
                None if started.elapsed() < COMMAND_TIMEOUT => {
                    self.running.push((arguments, process, started));
                    continue;
                }
                None => {
                    process.kill().await;
                    None
                }
            };
            self.ended.push(CommandResult { arguments, exit_code, tail: process.tail().to_string() });
        }
    }
}

impl TestCluster {
    /// Starts `headwater` with these arguments; [`Self::command_results`] has its end.
    pub fn start_command(&mut self, arguments: &[&str]) -> Result<(), Error> {
        self.operator.start(arguments)
    }

    /// Waits until every command has ended; those that take too long are killed. Returns the results of all commands so far.
    pub async fn command_results(&mut self) -> &[CommandResult] {
        loop {
            self.operator.collect().await;
            if self.operator.running.is_empty() {
                return &self.operator.ended;
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Runs a command to its end.
    pub async fn run_command(&mut self, arguments: &[&str]) -> Result<CommandResult, Error> {
        self.start_command(arguments)?;
        let results = self.command_results().await;
        Ok(results.last().expect("a command has just ended").clone())
    }

    /// The operator's configuration follows a rollout.
    pub(super) fn operator_config(&self) -> &Path {
        &self.operator.config
    }
}
