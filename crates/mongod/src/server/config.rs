//! The configuration of a server, and its command line.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::Error;
use super::log::ServerLog;
use crate::child;
use crate::program_paths::ProgramPaths;

/// A mongod on a busy two-core machine is ready in a second or two; this only bounds a hang.
const READY_WITHIN: Duration = Duration::from_secs(60);

#[derive(Debug, Clone)]
pub struct ServerConfig {
    pub role: ServerRole,
    /// Contains the data and the log; created if missing.
    pub folder: PathBuf,
    /// `None`: any free port.
    pub port: Option<u16>,
    /// `None`: mongod chooses by the size of the disk.
    pub oplog_megabytes: Option<u32>,
    /// Added to the command line unchanged.
    pub arguments: Vec<OsString>,
    /// All environment variables of the process, except the library path of its build.
    pub variables: Vec<(OsString, OsString)>,
    pub ready_within: Duration,
    pub parent_death_signal: ParentDeathSignal,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerRole {
    /// A member of a plain replica set.
    Member { replica_set: String },
    /// A member of a shard's replica set.
    Shard { replica_set: String },
    /// A member of the config servers' replica set.
    ConfigServer { replica_set: String },
    /// A mongod outside any replica set, to change data that no other server uses.
    Standalone,
    /// A mongos; `config_servers` is `set/host:port,…`.
    Router { config_servers: String },
}

/// The signal for the server if this process ends without stopping it, even by SIGKILL. Needs `setpriv` of util-linux; without
/// it (macOS), the server outlives this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParentDeathSignal {
    Kill,
    Terminate,
}

impl ServerConfig {
    pub fn new(role: ServerRole, folder: impl Into<PathBuf>) -> Self {
        Self {
            role,
            folder: folder.into(),
            port: None,
            oplog_megabytes: None,
            arguments: vec![],
            variables: vec![],
            ready_within: READY_WITHIN,
            parent_death_signal: ParentDeathSignal::Kill,
        }
    }

    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// A server parameter, as `--setParameter` takes it.
    pub fn parameter(self, name: &str, value: impl std::fmt::Display) -> Self {
        self.argument("--setParameter").argument(format!("{name}={value}"))
    }

    pub fn variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    pub(crate) fn database_folder(&self) -> PathBuf {
        self.folder.join("db")
    }

    pub(super) fn command(&self, binaries: &ProgramPaths, port: u16, log: &ServerLog) -> Result<Command, Error> {
        let program = match self.role {
            ServerRole::Router { .. } => {
                binaries.mongos.as_ref().ok_or_else(|| Error::NoMongos { mongod: binaries.mongod.clone() })?
            }
            _ => &binaries.mongod,
        };
        let (stdout, stderr) = log.writers().map_err(|source| Error::File { path: log.path().into(), source })?;
        let mut command = child::command(program, self.parent_death_signal);
        command
            .args(["--bind_ip", "127.0.0.1", "--nounixsocket", "--port", &port.to_string()])
            .args(self.role_arguments())
            .args(&self.arguments)
            .env_clear()
            .envs(self.library_path(binaries))
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr);
        Ok(command)
    }

    fn role_arguments(&self) -> Vec<OsString> {
        let mut arguments: Vec<OsString> = match &self.role {
            ServerRole::Member { replica_set } => vec!["--replSet".into(), replica_set.into()],
            ServerRole::Shard { replica_set } => vec!["--shardsvr".into(), "--replSet".into(), replica_set.into()],
            ServerRole::ConfigServer { replica_set } => {
                vec!["--configsvr".into(), "--replSet".into(), replica_set.into()]
            }
            ServerRole::Standalone => vec![],
            ServerRole::Router { config_servers } => return vec!["--configdb".into(), config_servers.into()],
        };
        arguments.extend(["--dbpath".into(), self.database_folder().into_os_string()]);
        // Small on purpose: many servers run in parallel, each with little data. The journal keeps its default.
        arguments.extend(["--wiredTigerCacheSizeGB", "0.25"].map(OsString::from));
        arguments.extend(["--setParameter", "diagnosticDataCollectionEnabled=false"].map(OsString::from));
        if let Some(megabytes) = self.oplog_megabytes {
            arguments.extend([OsString::from("--oplogSize"), megabytes.to_string().into()]);
        }
        arguments
    }

    fn library_path<'a>(&self, binaries: &'a ProgramPaths) -> Option<(&'static str, &'a OsStr)> {
        binaries.library_path.as_ref().map(|folder| ("LD_LIBRARY_PATH", folder.as_os_str()))
    }
}
