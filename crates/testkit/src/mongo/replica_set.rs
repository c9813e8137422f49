//! A replica set of a test's own, whose members meet the fates members meet.

use std::ffi::OsString;
use std::time::Duration;

use futures_util::future::try_join_all;
use mongod::{Role, Server, ServerConfig};
use mongodb::Client;
use mongodb::bson::{Bson, Document, doc, oid::ObjectId};

use super::scratch::Scratch;
use super::{Error, binaries};
use crate::wait::try_wait_for;

const NAME: &str = "testkit";
/// Elections on a busy two-core machine can need a second try; this only bounds a hang.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);
/// One member's answer; a member that is silent for longer is not the primary anyone wants.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Then it is asked again, of whoever is primary by then.
const NOTED_WITHIN: Duration = Duration::from_secs(5);
/// Failovers in about two seconds instead of ten.
const ELECTION_TIMEOUT_MILLIS: i32 = 2000;
const HEARTBEAT_INTERVAL_MILLIS: i32 = 500;

/// How a set is started; [`ReplicaSet::start`] for the usual one.
#[derive(Debug, Clone)]
pub struct ReplicaSetConfig {
    members: usize,
    oplog_megabytes: u32,
    arguments: Vec<OsString>,
    variables: Vec<Vec<(OsString, OsString)>>,
}

impl ReplicaSetConfig {
    pub fn of(members: usize) -> Self {
        Self { members, oplog_megabytes: 512, arguments: vec![], variables: vec![vec![]; members] }
    }

    pub fn oplog_megabytes(mut self, megabytes: u32) -> Self {
        self.oplog_megabytes = megabytes;
        self
    }

    /// Added to every member's command line.
    pub fn argument(mut self, argument: impl Into<OsString>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// An environment variable of one member: another clock, say.
    pub fn variable(mut self, member: usize, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables[member].push((name.into(), value.into()));
        self
    }

    pub async fn start(self) -> Result<ReplicaSet, Error> {
        let scratch = Scratch::new().map_err(Error::Scratch)?;
        let binaries = binaries().await?;
        let starts = (0..self.members).map(|member| Server::start(&binaries, self.member(member, &scratch)));
        let members = try_join_all(starts).await?;
        let set = ReplicaSet { paused: vec![false; members.len()], members, _scratch: scratch };
        mongod::initiate(&set.members[0], set.configuration()).await?;
        set.wait_until_settled().await?;
        Ok(set)
    }

    fn member(&self, member: usize, scratch: &Scratch) -> ServerConfig {
        let role = Role::Member { replica_set: NAME.into() };
        // A member that is told to stop gives its clients time to go elsewhere, by default fifteen seconds.
        let mut config = ServerConfig::new(role, scratch.path().join(member.to_string()))
            .parameter("shutdownTimeoutMillisForSignaledShutdown", 500);
        config.oplog_megabytes = Some(self.oplog_megabytes);
        config.arguments.extend(self.arguments.iter().cloned());
        config.variables.clone_from(&self.variables[member]);
        config
    }
}

/// Members are numbered from 0, in the order of the set's configuration.
#[derive(Debug)]
pub struct ReplicaSet {
    members: Vec<Server>,
    paused: Vec<bool>,
    _scratch: Scratch,
}

impl ReplicaSet {
    /// Returns when there is a primary and every other member is a secondary that has all data.
    pub async fn start(members: usize) -> Result<Self, Error> {
        ReplicaSetConfig::of(members).start().await
    }

    pub fn uri(&self) -> String {
        let hosts: Vec<_> = self.members.iter().map(Server::address).collect();
        format!("mongodb://{}/?replicaSet={NAME}", hosts.join(","))
    }

    pub async fn client(&self) -> Result<Client, Error> {
        Client::with_uri_str(self.uri()).await.map_err(Error::driver("connect to the set"))
    }

    pub fn member(&self, member: usize) -> &Server {
        &self.members[member]
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The member that is primary; waits for an election that is under way. With two that both think so (one has just
    /// been continued), the one elected last.
    pub async fn primary(&self) -> Result<usize, Error> {
        self.wait_for("a primary", newest_primary).await
    }

    /// A member that follows the primary.
    pub async fn secondary(&self) -> Result<usize, Error> {
        self.wait_for("a secondary", |hellos| hellos.iter().position(is_secondary)).await
    }

    /// Waits until this member follows a primary; after a restart, say. A member calls itself a secondary before it has found whom to
    /// follow. If that one falls silent in the meantime, it takes half a minute and more to look for another (measured: 21 s of a first
    /// connection, and a first read may take 65 s), and a majority that needs it stands still.
    pub async fn wait_until_secondary(&self, member: usize) -> Result<(), Error> {
        let waited_for = format!("member {member} as a secondary");
        self.wait_for(&waited_for, |hellos| is_secondary(&hellos[member]).then_some(())).await?;
        let running = (0..self.members.len()).filter(|member| self.runs(*member)).count() as i32;
        let followed = format!("a note of the primary's on all {running} members that run");
        Ok(try_wait_for(followed, SETTLED_WITHIN, async || self.note(running).await).await?)
    }

    /// Writes an entry into the oplog that concerns nobody, and waits until so many members have it.
    async fn note(&self, members: i32) -> Result<(), String> {
        let told = |error: &dyn std::fmt::Display| error.to_string();
        let primary = self.primary().await.map_err(|error| told(&error))?;
        let client = self.members[primary].direct_client().map_err(|error| told(&error))?;
        let on_all = doc! { "w": members, "wtimeout": i32::try_from(NOTED_WITHIN.as_millis()).unwrap_or(i32::MAX) };
        let command = doc! { "appendOplogNote": 1, "data": { "for": NAME }, "writeConcern": on_all };
        let answer = client.database("admin").run_command(command).await.map_err(|error| told(&error))?;
        if answer.contains_key("writeConcernError") { Err("not on all of them".into()) } else { Ok(()) }
    }

    /// SIGKILL.
    pub async fn kill(&mut self, member: usize) -> Result<(), Error> {
        self.paused[member] = false;
        Ok(self.members[member].kill().await?)
    }

    /// SIGTERM, and a clean end.
    pub async fn stop(&mut self, member: usize) -> Result<(), Error> {
        Ok(self.members[member].stop(SETTLED_WITHIN).await?)
    }

    /// SIGSTOP: its connections stay open and nothing answers.
    pub async fn pause(&mut self, member: usize) -> Result<(), Error> {
        self.members[member].pause().await?;
        self.paused[member] = true;
        Ok(())
    }

    /// SIGCONT.
    pub fn resume(&mut self, member: usize) -> Result<(), Error> {
        self.members[member].resume()?;
        self.paused[member] = false;
        Ok(())
    }

    /// Starts a member again on its own port and data, and waits until it answers; it may still be catching up.
    pub async fn restart(&mut self, member: usize) -> Result<(), Error> {
        self.paused[member] = false;
        Ok(self.members[member].restart().await?)
    }

    /// Changes the variables a member sees from its next [`Self::restart`] on.
    pub fn set_variables(&mut self, member: usize, variables: Vec<(OsString, OsString)>) {
        self.members[member].config_mut().variables = variables;
    }

    /// Asks the primary to step down and not to stand again for `barred`; returns who it was.
    pub async fn step_down(&self, barred: Duration) -> Result<usize, Error> {
        let primary = self.primary().await?;
        let seconds = i32::try_from(barred.as_secs()).unwrap_or(i32::MAX);
        let catch_up = seconds.min(5);
        let command = doc! { "replSetStepDown": seconds, "secondaryCatchUpPeriodSecs": catch_up };
        let client = self.members[primary].direct_client()?;
        let answer = client.database("admin").run_command(command).await;
        answer.map_err(Error::driver(format!("step member {primary} down")))?;
        Ok(primary)
    }

    fn configuration(&self) -> Document {
        let members = self.members.iter().enumerate();
        let members: Vec<Bson> =
            members.map(|(id, server)| doc! { "_id": id as i32, "host": server.address() }.into()).collect();
        let settings = doc! {
            "electionTimeoutMillis": ELECTION_TIMEOUT_MILLIS,
            "heartbeatIntervalMillis": HEARTBEAT_INTERVAL_MILLIS,
        };
        doc! { "_id": NAME, "members": members, "settings": settings }
    }

    async fn wait_until_settled(&self) -> Result<(), Error> {
        let settled = |hellos: &[Option<Document>]| {
            let secondaries = hellos.iter().filter(|hello| is_secondary(hello)).count();
            (newest_primary(hellos).is_some() && secondaries == hellos.len() - 1).then_some(())
        };
        self.wait_for("a primary that all others follow", settled).await
    }

    async fn wait_for<T>(&self, what: &str, seen: impl Fn(&[Option<Document>]) -> Option<T>) -> Result<T, Error> {
        let found = try_wait_for(what, SETTLED_WITHIN, async || {
            let hellos = self.hellos().await;
            seen(&hellos).ok_or_else(|| describe(&hellos))
        });
        Ok(found.await?)
    }

    fn runs(&self, member: usize) -> bool {
        !self.paused[member] && self.members[member].pid().is_some()
    }

    /// What every member says of itself; `None` for one that is down, paused or silent.
    async fn hellos(&self) -> Vec<Option<Document>> {
        let asked = (0..self.members.len()).map(|member| self.hello(member));
        futures_util::future::join_all(asked).await
    }

    async fn hello(&self, member: usize) -> Option<Document> {
        if !self.runs(member) {
            return None;
        }
        let client = self.members[member].direct_client().ok()?;
        let admin = client.database("admin");
        tokio::time::timeout(ANSWER_WITHIN, async { admin.run_command(doc! { "hello": 1 }).await }).await.ok()?.ok()
    }
}

fn is_secondary(hello: &Option<Document>) -> bool {
    hello.as_ref().is_some_and(|said| said.get_bool("secondary").unwrap_or(false))
}

fn newest_primary(hellos: &[Option<Document>]) -> Option<usize> {
    let elected = |hello: &Option<Document>| -> Option<ObjectId> {
        let said = hello.as_ref().filter(|said| said.get_bool("isWritablePrimary").unwrap_or(false))?;
        said.get_object_id("electionId").ok()
    };
    let primaries = hellos.iter().enumerate().filter_map(|(member, hello)| Some((elected(hello)?, member)));
    primaries.max().map(|(_, member)| member)
}

fn describe(hellos: &[Option<Document>]) -> String {
    let role = |hello: &Option<Document>| match hello {
        None => "silent",
        Some(said) if said.get_bool("isWritablePrimary").unwrap_or(false) => "primary",
        Some(said) if said.get_bool("secondary").unwrap_or(false) => "secondary",
        Some(_) => "neither",
    };
    hellos.iter().map(role).collect::<Vec<_>>().join(", ")
}
