//! Configuration files and addresses of the processes of `headwater dev`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use local_cluster::{
    BrokerOptions, LeaseTimings, PodConfig, TopicEntity, connection_string, emulator_config, pod_program,
};
use mongod::ReservedPort;

use super::DevOptions;
use super::data_folder::DataFolder;
use super::databases::DevDatabases;
use super::mongo::DevMongo;
use super::supervised_process::{SupervisedProcess, this_program};
use crate::{config, shop};

pub(super) const COLLECTION: &str = "events";
pub(super) const PIPELINE: &str = "shop";
pub(super) const TOPIC: &str = "events";
pub(super) const SUBSCRIPTION: &str = "read-models";
/// The broker reads its journal first, and the machine may be busy.
const BROKER_TIMEOUT: Duration = Duration::from_secs(60);
/// A pod serves its dashboard before it does anything else.
const POD_TIMEOUT: Duration = Duration::from_secs(30);
const HEADER: &str = "# Written by `headwater dev` at every start. To try a change, copy this file and run `headwater run --config <copy>`.\n";
/// The configuration key of a pod's dashboard address.
const ADMIN_LISTEN: &str = "admin.listen";

/// Names, addresses and files of this run.
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
        let (binary, data_dir) = (this_program()?, self.broker_dir.clone());
        let options = BrokerOptions {
            binary,
            data_dir,
            entities: Some(entities),
            test_hooks: false,
            access: None,
            arguments: vec![],
            environment: vec![],
        };
        let address = address(&self.broker);
        let broker = SupervisedProcess::start(options.program(address).append_output_to(folder.log("broker")?))?;
        // It listens before it has read its journal; connections wait until it has.
        broker.wait_until_listening(address, BROKER_TIMEOUT).await?;
        Ok(broker)
    }

    /// Returns when every dashboard listens.
    pub(super) async fn wait_for(&self, pods: &[SupervisedProcess]) -> anyhow::Result<()> {
        for (pod, port) in pods.iter().zip(&self.admin) {
            pod.wait_until_listening(address(port), POD_TIMEOUT).await?;
        }
        Ok(())
    }

    pub(super) fn start_pods(&self, folder: &DataFolder) -> anyhow::Result<Vec<SupervisedProcess>> {
        let pod = |pod: u16| {
            let name = pod_name(pod);
            let program = pod_program(this_program()?, &self.file).named(&name).env("HOSTNAME", &name);
            let program = program.append_output_to(folder.log(&name)?);
            SupervisedProcess::start(match self.admin.get(usize::from(pod) - 1) {
                Some(port) => program.env("HEADWATER__ADMIN__LISTEN", address(port).to_string()),
                None => program,
            })
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

fn pod_name(pod: u16) -> String {
    format!("pod-{pod}")
}

fn address(port: &ReservedPort) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port.number()))
}

fn configuration(uri: &str, database: &str, views: &str, coordination: &str, bus: &str, token: &str) -> String {
    // A JSON string is also a YAML string.
    let views = serde_json::Value::from(views);
    let read_models = shop::READ_MODELS.replacen("read_models:\n", &format!("read_models:\n  database: {views}\n"), 1);
    let config = PodConfig {
        pipeline: Some(PIPELINE),
        mongodb_uri: uri,
        database,
        source: "sequence: version",
        coordination,
        lease: LeaseTimings {
            ttl: Duration::from_secs(2),
            renew_deadline: Duration::from_millis(1_500),
            heartbeat: Duration::from_millis(500),
        },
        connection_string: bus,
        topic: TOPIC,
        ca_file: None,
        extra_yaml: &format!("producer: {{ start: beginning }}\nadmin: {{ token: \"{token}\" }}\n{read_models}"),
    };
    format!("{HEADER}{}", config.to_yaml())
}

fn entities() -> String {
    emulator_config(&[TopicEntity::for_pipeline(TOPIC, true)])
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
        let read = config::Config::from_process(Some(&file), &[], None).unwrap();
        assert_eq!(read.source_uri.reveal(), uri);
        assert_eq!(read.read_models.database, "shop_views");
        assert_eq!(read.read_models.models.len(), 5);
        assert_eq!(read.admin.token.map(|token| token.reveal().len()), Some(32));
    }
}
