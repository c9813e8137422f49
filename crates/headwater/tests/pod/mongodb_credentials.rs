//! MongoDB credentials of a pod: a rebuild under the documented role, a rotated user, and a certificate instead of a password.

use std::path::{Path, PathBuf};

use mongodb::bson::{Document, doc};
use mongodb::{Client, Collection};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use testkit::bus::TestBroker;
use testkit::issuer::{AUDIENCE, CLIENT, TENANT, TokenIssuer};
use testkit::process::{Process, Program};
use testkit::wait::wait_for;

use crate::BINARY;
use crate::fixture::SOON;
use crate::least_privilege::{SecuredMongo, order, prepare, start_broker};

fn start_pod(config: &Path) -> Process {
    let pod = local_cluster::pod_program(BINARY, config).named("pod-0").env("HOSTNAME", "pod-0");
    pod.start().unwrap()
}

async fn stop_pod(pod: Process) {
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
}

/// Waits until an order of the read model has this version of a field.
async fn wait_for_order(root: &Client, expected: Document) {
    let orders: Collection<Document> = root.database("shop_views").collection("orders");
    wait_for(format!("{expected}"), SOON, async || {
        let found = orders.find_one(doc! { "_id": "order-1" }).await.unwrap();
        if found.as_ref() == Some(&expected) { Ok(()) } else { Err(found) }
    })
    .await;
}

fn rewrite(config: &Path, from: &str, to: &str) {
    let text = std::fs::read_to_string(config).unwrap();
    assert!(text.contains(from), "{text}");
    std::fs::write(config, text.replace(from, to)).unwrap();
}

#[tokio::test]
async fn a_rebuild_needs_only_the_documented_mongodb_role() {
    let (mongo, broker) = (SecuredMongo::start().await, start_broker().await);
    let config = prepare(&mongo, &broker).await;
    rewrite(&config, "read_models: { orders", "read_models: { change_delay: 0s, orders");
    let root = mongo.client("root").await;
    root.database("shop").collection("events").insert_one(order(1)).await.unwrap();
    let pod = start_pod(&config);
    wait_for_order(&root, doc! { "_id": "order-1", "customer": "ada" }).await;
    stop_pod(pod).await;
    rewrite(
        &config,
        "{ $set: { customer: $$event.payload.customer } }",
        "{ $set: { buyer: $$event.payload.customer } }",
    );
    let pod = start_pod(&config);
    wait_for_order(&root, doc! { "_id": "order-1", "buyer": "ada" }).await;
    let denied = pod.lines().into_iter().find(|line| line.text.contains("nauthorized"));
    assert!(denied.is_none(), "{denied:?}");
    stop_pod(pod).await;
    broker.stop().await;
}

#[tokio::test]
async fn a_rotated_user_needs_no_restart() {
    let (mongo, broker) = (SecuredMongo::start().await, start_broker().await);
    let config = prepare(&mongo, &broker).await;
    let uri_file = config.with_file_name("uri");
    std::fs::write(&uri_file, mongo.uri("pod")).unwrap();
    rewrite(&config, &format!("uri: \"{}\"", mongo.uri("pod")), &format!("uri_file: {}", uri_file.display()));
    let root = mongo.client("root").await;
    let events = root.database("shop").collection("events");
    let pod = start_pod(&config);
    events.insert_one(order(1)).await.unwrap();
    wait_for_order(&root, doc! { "_id": "order-1", "customer": "ada" }).await;

    // A file that cannot be used changes nothing.
    std::fs::write(&uri_file, "nonsense").unwrap();
    pod.wait_for_line("keeping the present credentials", SOON).await;
    let admin = root.database("admin");
    admin.run_command(doc! { "createUser": "next", "pwd": "password", "roles": ["headwaterPod"] }).await.unwrap();
    std::fs::write(&uri_file, mongo.uri("next")).unwrap();
    pod.wait_for_line("restarting the services of this pod with the new credentials", SOON).await;
    pod.wait_for_line("\"stopped\"", SOON).await;
    admin.run_command(doc! { "dropUser": "pod" }).await.unwrap();
    let next = doc! { "aggregateId": "order-1", "version": 2_i64, "type": "Placed", "payload": { "customer": "bob" } };
    events.insert_one(next).await.unwrap();
    wait_for_order(&root, doc! { "_id": "order-1", "customer": "bob" }).await;
    let leaked = pod.lines().into_iter().find(|line| line.text.contains(":password@"));
    assert!(leaked.is_none(), "{leaked:?}");
    stop_pod(pod).await;
    broker.stop().await;
}

const RESTARTING: &str = "restarting the services of this pod with the new credentials";

/// A pod whose URI is in a file.
async fn start_pod_with_uri_file(mongo: &SecuredMongo, broker: &TestBroker) -> (Process, PathBuf) {
    let config = prepare(mongo, broker).await;
    let uri_file = config.with_file_name("uri");
    std::fs::write(&uri_file, mongo.uri("pod")).unwrap();
    rewrite(&config, &format!("uri: \"{}\"", mongo.uri("pod")), &format!("uri_file: {}", uri_file.display()));
    let pod = start_pod(&config);
    pod.wait_for_line("admin server listening", SOON).await;
    (pod, uri_file)
}

async fn create_user(root: &Client, name: &str) {
    let user = doc! { "createUser": name, "pwd": "password", "roles": ["headwaterPod"] };
    root.database("admin").run_command(user).await.unwrap();
}

#[tokio::test]
async fn a_secret_that_rotates_during_a_rotation_is_used() {
    let (mongo, broker) = (SecuredMongo::start().await, start_broker().await);
    let root = mongo.client("root").await;
    let (pod, uri_file) = start_pod_with_uri_file(&mongo, &broker).await;
    for user in ["second", "third"] {
        create_user(&root, user).await;
    }
    std::fs::write(&uri_file, mongo.uri("second")).unwrap();
    pod.wait_for_line(RESTARTING, SOON).await;
    // While the services stop.
    std::fs::write(&uri_file, mongo.uri("third")).unwrap();
    wait_for("the second restart", SOON, async || {
        let restarts = pod.lines().iter().filter(|line| line.text.contains(RESTARTING)).count();
        if restarts == 2 { Ok(()) } else { Err(restarts) }
    })
    .await;
    wait_for("the services to stop twice", SOON, async || {
        let stops = pod.lines().iter().filter(|line| line.text.contains("\"stopped\"")).count();
        if stops == 2 { Ok(()) } else { Err(stops) }
    })
    .await;
    for user in ["pod", "second"] {
        root.database("admin").run_command(doc! { "dropUser": user }).await.unwrap();
    }
    root.database("shop").collection("events").insert_one(order(1)).await.unwrap();
    wait_for_order(&root, doc! { "_id": "order-1", "customer": "ada" }).await;
    stop_pod(pod).await;
    broker.stop().await;
}

#[tokio::test]
async fn a_signal_during_a_rotation_stops_the_pod_for_good() {
    let (mongo, broker) = (SecuredMongo::start().await, start_broker().await);
    let root = mongo.client("root").await;
    let (pod, uri_file) = start_pod_with_uri_file(&mongo, &broker).await;
    create_user(&root, "second").await;
    std::fs::write(&uri_file, mongo.uri("second")).unwrap();
    pod.wait_for_line(RESTARTING, SOON).await;
    pod.terminate();
    assert!(pod.wait_for_exit(SOON).await.success());
    let last = pod.lines().into_iter().rfind(|line| line.text.contains("\"message\""));
    assert!(last.as_ref().is_some_and(|line| line.text.contains("\"stopped\"")), "it stopped in order: {last:?}");
    broker.stop().await;
}

/// An authority, the certificate of the server and that of a client, as files.
fn write_certificates(folder: &Path) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "authority");
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(folder.join("ca.pem"), issuer.pem()).unwrap();
    for (name, organization) in [("server", "servers"), ("client", "pods")] {
        let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, organization);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        let text = format!("{}{}", certificate.pem(), key.serialize_pem());
        std::fs::write(folder.join(format!("{name}.pem")), text).unwrap();
    }
}

#[tokio::test]
async fn a_certificate_takes_the_place_of_a_password() {
    let (mut mongo, broker) = (SecuredMongo::start().await, start_broker().await);
    let folder = mongo.folder().to_owned();
    write_certificates(&folder);
    let config = prepare(&mongo, &broker).await;
    let root = mongo.client("root").await;
    let external = root.database("$external");
    let roles = [doc! { "role": "headwaterPod", "db": "admin" }];
    external.run_command(doc! { "createUser": "CN=client,O=pods", "roles": &roles[..] }).await.unwrap();
    let file = |name: &str| folder.join(name).display().to_string();
    // The test itself connects without TLS.
    let tls =
        ["--tlsMode", "preferTLS", "--tlsCertificateKeyFile", &file("server.pem"), "--tlsCAFile", &file("ca.pem")];
    mongo.restart_with(&[&tls[..], &["--tlsAllowConnectionsWithoutCertificates"]].concat()).await;
    let uri = format!(
        "mongodb://{}/?replicaSet=secured&tls=true&tlsCAFile={}&tlsCertificateKeyFile={}&authMechanism=MONGODB-X509&authSource=$external",
        mongo.address(),
        file("ca.pem"),
        file("client.pem")
    );
    rewrite(&config, &mongo.uri("pod"), &uri);
    let pod = start_pod(&config);
    root.database("shop").collection("events").insert_one(order(1)).await.unwrap();
    wait_for_order(&root, doc! { "_id": "order-1", "customer": "ada" }).await;
    // A renewed certificate: another content is enough, as it is compared by content.
    let renewed = std::fs::read_to_string(folder.join("client.pem")).unwrap() + "\n";
    std::fs::write(folder.join("client.pem"), renewed).unwrap();
    pod.wait_for_line(RESTARTING, SOON).await;
    stop_pod(pod).await;
    broker.stop().await;
}

/// MongoDB's community server does not have the mechanism, so it refuses the token. The request for it is what can be shown here.
#[tokio::test]
async fn a_mongodb_user_can_be_an_identity_of_entra_id() {
    let folder = tempfile::tempdir().unwrap();
    let files = testkit::bus::create_access(folder.path()).unwrap().certificate.unwrap();
    let issuer = TokenIssuer::start(folder.path(), &files).await;
    let federated = folder.path().join("federated");
    std::fs::write(&federated, "federated-1").unwrap();
    let (broker, server) = (start_broker().await, testkit::mongo::shared().await.unwrap());
    let separator = if server.uri().contains('?') { "&" } else { "/?" };
    // The issuer of the tests issues tokens for this resource only.
    let uri = format!(
        "{}{separator}authMechanism=MONGODB-OIDC&authMechanismProperties=ENVIRONMENT:azure,TOKEN_RESOURCE:{AUDIENCE}",
        server.uri()
    );
    let config = folder.path().join("headwater.yaml");
    let bus = broker.endpoint().connection_string();
    let text = format!(
        "format: 1\npipeline: shop\nsource: {{ uri: \"{uri}\", database: shop, collection: events }}\n\
         service_bus: {{ connection_string: \"{bus}\" }}\nproducer: {{ start: now }}\n"
    );
    std::fs::write(&config, text).unwrap();
    let run = async || {
        let program = Program::new(BINARY).args(["check", "--config", config.to_str().unwrap()]);
        let program = program.env("AZURE_TENANT_ID", TENANT).env("AZURE_CLIENT_ID", CLIENT);
        let program = program.env("AZURE_FEDERATED_TOKEN_FILE", &federated);
        let program = program.env("AZURE_AUTHORITY_HOST", issuer.authority()).env("SSL_CERT_FILE", &files.ca_file);
        let check = program.start().unwrap();
        assert!(!check.wait_for_exit(SOON).await.success());
        check.lines().into_iter().map(|line| line.text + "\n").collect::<String>()
    };
    let refused_by_server = run().await;
    assert!(issuer.requests() > 0, "{refused_by_server}");
    assert!(refused_by_server.contains("MONGODB-OIDC"), "{refused_by_server}");
    assert!(!refused_by_server.contains("eyJ"), "a token: {refused_by_server}");
    std::fs::write(&federated, "of somebody else").unwrap();
    let refused_by_issuer = run().await;
    assert!(refused_by_issuer.contains("failed to obtain an Entra ID token"), "{refused_by_issuer}");
    broker.stop().await;
}
