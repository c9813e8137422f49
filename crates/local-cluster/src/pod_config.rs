//! The configuration file and the program of a pod.

use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

use crate::process::Program;

#[derive(Clone, Copy, Debug)]
pub struct LeaseTimings {
    pub ttl: Duration,
    pub renew_deadline: Duration,
    pub heartbeat: Duration,
}

impl Default for LeaseTimings {
    /// Short, so that a takeover is quick and a soak has many. In production `ttl` would be 15 s.
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(2),
            renew_deadline: Duration::from_millis(1_300),
            heartbeat: Duration::from_millis(400),
        }
    }
}

/// The configuration of a pod.
#[derive(Clone, Copy, Debug)]
pub struct PodConfig<'a> {
    /// `None`: `extra_yaml` has a list of pipelines.
    pub pipeline: Option<&'a str>,
    pub mongodb_uri: &'a str,
    pub database: &'a str,
    /// Further keys of `source:`, as flow-style YAML.
    pub source: &'a str,
    /// The coordination database.
    pub coordination: &'a str,
    pub lease: LeaseTimings,
    pub connection_string: &'a str,
    pub topic: &'a str,
    /// The authorities to trust, if not the public ones.
    pub ca_file: Option<&'a Path>,
    /// All other sections, as lines of YAML.
    pub extra_yaml: &'a str,
}

impl PodConfig<'_> {
    pub fn to_yaml(&self) -> String {
        let Self { pipeline, source, topic, extra_yaml, .. } = self;
        let LeaseTimings { ttl, renew_deadline, heartbeat } = self.lease;
        let [ttl, renew_deadline, heartbeat] = [ttl, renew_deadline, heartbeat].map(|time| time.as_millis());
        // A JSON string is also a YAML string.
        let [uri, database, coordination, connection_string] =
            [self.mongodb_uri, self.database, self.coordination, self.connection_string]
                .map(|text| serde_json::Value::from(text).to_string());
        let ca_file = self.ca_file.map_or(String::new(), |file| {
            format!(", ca_file: {}", serde_json::Value::from(file.display().to_string()))
        });
        let pipeline = pipeline.map_or(String::new(), |name| format!("pipeline: {name}\n"));
        format!(
            "format: 1
{pipeline}source: {{ uri: {uri}, database: {database}, collection: events, {source} }}
coordination: {{ database: {coordination}, lease: {{ ttl: {ttl}ms, renew_deadline: {renew_deadline}ms, heartbeat: {heartbeat}ms }} }}
service_bus: {{ connection_string: {connection_string}, topic: {topic}, subscription: read-models{ca_file} }}
{extra_yaml}"
        )
    }
}

/// `headwater run` with a configuration file.
pub fn pod_program(binary: impl AsRef<Path>, config: &Path) -> Program {
    Program::new(binary.as_ref()).args([OsStr::new("run"), OsStr::new("--config"), config.as_os_str()])
}
