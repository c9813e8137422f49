//! Configuration files and addresses of the processes of `headwater dev`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use mongod::ReservedPort;
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::DevOptions;
use super::data_folder::DataFolder;
use super::databases::DevDatabases;
use super::mongo::DevMongo;
use super::supervised_process::{DevProgram, SupervisedProcess};
use crate::{config, shop};

pub(super) const COLLECTION: &str = "events";
pub(super) const PIPELINE: &str = "shop";
pub(super) const TOPIC: &str = "events";
pub(super) const SUBSCRIPTION: &str = "read-models";
/// The broker reads its journal first, and the machine may be busy.
const BROKER_TIMEOUT: Duration = Duration::from_secs(60);
/// A pod serves its dashboard before it does anything else.
const POD_TIMEOUT: Duration = Duration::from_secs(30);
/// The configuration key of a pod's dashboard address.
const ADMIN_LISTEN: &str = "admin.listen";

/// DevDatabases and places of this run.
pub(super) struct DevSettings {
    pub(super) database: String,
    pub(super) views: String,
    pub(super) coordination: String,
    pub(super) bus: String,
    /// The operator token of the dashboards.
    token: String,
    /// The configuration file of every pod.
    pub(super) file: PathBuf,
    data_dir: PathBuf,
    /// The broker's data folder for this MongoDB.
    broker_dir: PathBuf,
    broker: ReservedPort,
    /// One per pod.
    admin: Vec<ReservedPort>,
    pods: u16,
}

impl DevSettings {
    pub(super) async fn of(options: &DevOptions, folder: &DataFolder, store: &DevMongo) -> anyhow::Result<Self> {
        let DevDatabases { database, views, coordination, broker } = DevDatabases::of(store, folder).await?;
        let broker_dir = folder.at(&broker);
        let broker = folder.reserve_port("broker", options.ports.broker())?;
        let bus = connection_string(address(&broker));
        let admin = (1..=options.pods)
            .filter(|_| config::has_key(ADMIN_LISTEN))
            .map(|pod| folder.reserve_port(&pod_name(pod), options.ports.dashboard()));
        let admin = admin.collect::<anyhow::Result<_>>()?;
        let token = folder.read_or_create_secret("token", || format!("{:032x}", rand::random::<u128>()))?;
        let text = configuration(store.uri(), &database, &views, &coordination, &bus, &token);
        let file = folder.write("headwater.yaml", &text)?;
        let data_dir = folder.path().to_owned();
        let pods = options.pods;
        Ok(Self { database, views, coordination, bus, token, file, data_dir, broker_dir, broker, admin, pods })
    }

    /// Returns when the broker listens.
    pub(super) async fn start_broker(&self, folder: &DataFolder) -> anyhow::Result<SupervisedProcess> {
        let entities = folder.write("entities.json", &entities())?;
        let address = address(&self.broker);
        let mut arguments = ["broker", "--listen"].map(Into::into).to_vec();
        arguments.extend([address.to_string().into(), "--data-dir".into(), self.broker_dir.clone().into()]);
        arguments.extend(["--config".into(), entities.into()]);
        let program = DevProgram { name: "broker".into(), arguments, variables: vec![], log: folder.log("broker")? };
        let mut broker = SupervisedProcess::start(program)?;
        // It listens before it has read its journal; connections wait until it has.
        wait_until_listening(&mut broker, address, BROKER_TIMEOUT).await?;
        Ok(broker)
    }

    /// Returns when every dashboard listens.
    pub(super) async fn wait_for(&self, pods: &mut [SupervisedProcess]) -> anyhow::Result<()> {
        for (pod, port) in pods.iter_mut().zip(&self.admin) {
            wait_until_listening(pod, address(port), POD_TIMEOUT).await?;
        }
        Ok(())
    }

    pub(super) fn start_pods(&self, folder: &DataFolder) -> anyhow::Result<Vec<SupervisedProcess>> {
        let pod = |pod: u16| {
            let name = pod_name(pod);
            let mut variables = vec![("HOSTNAME".to_owned(), name.clone())];
            if let Some(port) = self.admin.get(usize::from(pod) - 1) {
                variables.push(("HEADWATER__ADMIN__LISTEN".to_owned(), address(port).to_string()));
            }
            let arguments = vec!["run".into(), "--config".into(), self.file.clone().into()];
            SupervisedProcess::start(DevProgram { log: folder.log(&name)?, name, arguments, variables })
        };
        (1..=self.pods).map(pod).collect()
    }

    /// The addresses, for the user.
    pub(super) fn describe(&self, store: &DevMongo, pods: &[SupervisedProcess]) -> String {
        let Self { database, views, bus, token, file, data_dir, .. } = self;
        let pods: Vec<_> =
            pods.iter().map(|pod| format!("{} (pid {})", pod.name(), pod.pid().unwrap_or_default())).collect();
        let dashboards = describe_dashboards(&self.admin);
        let (mongodb, pods, logs) = (store.display(), pods.join(", "), data_dir.join("logs"));
        format!(
            "
MongoDB:        {mongodb}
                events in `{database}.{COLLECTION}`, read models in `{views}`
Broker:         {bus}
{dashboards}Operator token: {token}
Data:           {}
                configuration in {}, logs in {}
Pods:           {pods}

Kill a pod (kill -9) and another takes over. Ctrl-C stops everything and checks that nothing was lost.",
            data_dir.display(),
            file.display(),
            logs.display()
        )
    }
}

/// Any pod shows the same, so one address is enough; the others are there if that pod is down.
fn describe_dashboards(ports: &[ReservedPort]) -> String {
    let Some((first, others)) = ports.split_first() else { return String::new() };
    let others: Vec<_> = others.iter().map(|port| port.number().to_string()).collect();
    let others = match others.as_slice() {
        [] => String::new(),
        others => format!(" (any pod shows the same; the others on {})", others.join(", ")),
    };
    format!("Dashboard:      http://{}{others}\n", address(first))
}

async fn wait_until_listening(
    child: &mut SupervisedProcess,
    address: SocketAddr,
    within: Duration,
) -> anyhow::Result<()> {
    let deadline = Instant::now() + within;
    while TcpStream::connect(address).await.is_err() {
        if !child.is_up() || Instant::now() > deadline {
            bail!("{} did not start; log: {}", child.name(), child.log().display());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

fn pod_name(pod: u16) -> String {
    format!("pod-{pod}")
}

fn address(port: &ReservedPort) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port.number()))
}

fn connection_string(address: SocketAddr) -> String {
    format!("Endpoint=sb://{address};SharedAccessKeyName=any;SharedAccessKey=any;UseDevelopmentEmulator=true")
}

/// The lease lasts two seconds, so that a takeover is quick. In production it would be 15.
fn configuration(uri: &str, database: &str, views: &str, coordination: &str, bus: &str, token: &str) -> String {
    // A JSON string is also a YAML string.
    let [uri, database, views, coordination, bus] =
        [uri, database, views, coordination, bus].map(|text| serde_json::Value::from(text).to_string());
    let read_models = shop::READ_MODELS.replacen("read_models:\n", &format!("read_models:\n  database: {views}\n"), 1);
    format!(
        "# Written by `headwater dev` at every start. To try a change, copy this file and run `headwater run --config <copy>`.
format: 1
pipeline: {PIPELINE}
source: {{ uri: {uri}, database: {database}, collection: {COLLECTION}, sequence: version }}
coordination: {{ database: {coordination}, lease: {{ ttl: 2s, renew_deadline: 1500ms, heartbeat: 500ms }} }}
service_bus: {{ connection_string: {bus}, topic: {TOPIC}, subscription: {SUBSCRIPTION} }}
producer: {{ start: beginning }}
admin: {{ token: \"{token}\" }}
{read_models}"
    )
}

/// In the format of the official emulator's configuration.
fn entities() -> String {
    format!(
        r#"{{ "UserConfig": {{ "Namespaces": [ {{ "Name": "dev", "Topics": [ {{
  "Name": "{TOPIC}",
  "Properties": {{ "RequiresDuplicateDetection": true, "DuplicateDetectionHistoryTimeWindow": "PT10M", "EnablePartitioning": true }},
  "Subscriptions": [ {{
    "Name": "{SUBSCRIPTION}",
    "Properties": {{ "RequiresSession": true, "LockDuration": "PT1M", "MaxDeliveryCount": 2000, "DeadLetteringOnMessageExpiration": true }}
  }} ]
}} ] }} ] }} }}"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_broker_reads_its_entities() {
        let read = broker::emulator_config::parse(&entities()).unwrap();
        assert_eq!(read.entities.len(), 2);
    }

    #[test]
    fn a_pod_reads_its_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("headwater.yaml");
        let uri = "mongodb://someone:p\"ss@localhost/?replicaSet=rs0";
        std::fs::write(
            &file,
            configuration(uri, "shop", "shop_views", "shop_headwater", "Endpoint=sb://x", &"7".repeat(32)),
        )
        .unwrap();
        let read = config::Config::from_process(Some(&file), &[]).unwrap();
        assert_eq!(read.source_uri.reveal(), uri);
        assert_eq!(read.read_models.database, "shop_views");
        assert_eq!(read.read_models.models.len(), 5);
        assert_eq!(read.admin.token.map(|token| token.reveal().len()), Some(32));
    }
}
