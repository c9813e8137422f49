//! A replica set for one test. Its members can be killed, paused, stepped down and restarted.

use std::ffi::OsString;
use std::time::Duration;

use futures_util::future::try_join_all;
use mongod::{MongoServer, ServerConfig, ServerRole};
use mongodb::Client;
use mongodb::bson::{Bson, Document, doc, oid::ObjectId};

use super::scratch::ScratchFolder;
use super::{Error, binaries};
use crate::wait::try_wait_for;

const NAME: &str = "testkit";
/// An election on a busy two-core machine can need a second attempt; this only bounds a hang.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// For one member's response; a member that takes longer does not count as primary.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// After this the note is written again, on the primary of that moment.
const NOTE_TIMEOUT: Duration = Duration::from_secs(5);
/// Failovers in about two seconds instead of ten.
const ELECTION_TIMEOUT_MILLIS: i32 = 2000;
const HEARTBEAT_INTERVAL_MILLIS: i32 = 500;

/// Options of a replica set; [`ReplicaSet::start`] uses the defaults.
#[derive(Debug, Clone)]
pub struct ReplicaSetConfig {
    members: usize,
    oplog_megabytes: u32,
    arguments: Vec<OsString>,
    variables: Vec<Vec<(OsString, OsString)>>,
}

impl ReplicaSetConfig {
    pub fn with_members(members: usize) -> Self {
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

    /// An environment variable of one member, for example another clock.
    pub fn variable(mut self, member: usize, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables[member].push((name.into(), value.into()));
        self
    }

    pub async fn start(self) -> Result<ReplicaSet, Error> {
        let scratch = ScratchFolder::new().map_err(Error::Scratch)?;
        let binaries = binaries().await?;
        let starts = (0..self.members).map(|member| MongoServer::start(&binaries, self.member(member, &scratch)));
        let members = try_join_all(starts).await?;
        let set = ReplicaSet { paused: vec![false; members.len()], members, _scratch: scratch };
        mongod::initiate(&set.members[0], set.configuration()).await?;
        set.wait_until_settled().await?;
        Ok(set)
    }

    fn member(&self, member: usize, scratch: &ScratchFolder) -> ServerConfig {
        let role = ServerRole::Member { replica_set: NAME.into() };
        // On shutdown a member waits for its clients to move, by default for fifteen seconds.
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
    members: Vec<MongoServer>,
    paused: Vec<bool>,
    _scratch: ScratchFolder,
}

impl ReplicaSet {
    /// Returns when there is a primary and every other member is a secondary that has all data.
    pub async fn start(members: usize) -> Result<Self, Error> {
        ReplicaSetConfig::with_members(members).start().await
    }

    pub fn uri(&self) -> String {
        let hosts: Vec<_> = self.members.iter().map(MongoServer::address).collect();
        format!("mongodb://{}/?replicaSet={NAME}", hosts.join(","))
    }

    pub async fn client(&self) -> Result<Client, Error> {
        Client::with_uri_str(self.uri()).await.map_err(Error::driver("connect to the replica set"))
    }

    pub fn member(&self, member: usize) -> &MongoServer {
        &self.members[member]
    }

    pub fn len(&self) -> usize {
        self.members.len()
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// The primary; waits for a running election. If two members claim it (one was just resumed), the one elected last.
    pub async fn primary(&self) -> Result<usize, Error> {
        self.wait_for("a primary", newest_primary).await
    }

    /// A member that follows the primary.
    pub async fn secondary(&self) -> Result<usize, Error> {
        self.wait_for("a secondary", |hellos| hellos.iter().position(is_secondary)).await
    }

    /// Waits until this member follows a primary, for example after a restart. A member reports itself as secondary before it has found
    /// a sync source. If that source stops responding, the member takes half a minute or more to find another (measured: 21 s for a
    /// first connection, up to 65 s for a first read), and a majority that needs it makes no progress.
    pub async fn wait_until_secondary(&self, member: usize) -> Result<(), Error> {
        let waited_for = format!("member {member} as a secondary");
        self.wait_for(&waited_for, |hellos| is_secondary(&hellos[member]).then_some(())).await?;
        let running = (0..self.members.len()).filter(|member| self.is_running(*member)).count() as i32;
        let followed = format!("a note of the primary's on all {running} members that run");
        Ok(try_wait_for(followed, SETTLE_TIMEOUT, async || self.write_oplog_note(running).await).await?)
    }

    /// Writes a no-op entry into the oplog and waits until so many members have it.
    async fn write_oplog_note(&self, members: i32) -> Result<(), String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let primary = self.primary().await.map_err(|error| text(&error))?;
        let client = self.members[primary].direct_client().map_err(|error| text(&error))?;
        let on_all = doc! { "w": members, "wtimeout": i32::try_from(NOTE_TIMEOUT.as_millis()).unwrap_or(i32::MAX) };
        let command = doc! { "appendOplogNote": 1, "data": { "for": NAME }, "writeConcern": on_all };
        let answer = client.database("admin").run_command(command).await.map_err(|error| text(&error))?;
        if answer.contains_key("writeConcernError") { Err("not on all members".into()) } else { Ok(()) }
    }

    /// SIGKILL.
    pub async fn kill(&mut self, member: usize) -> Result<(), Error> {
        self.paused[member] = false;
        Ok(self.members[member].kill().await?)
    }

    /// SIGTERM; waits for a clean end.
    pub async fn stop(&mut self, member: usize) -> Result<(), Error> {
        Ok(self.members[member].stop(SETTLE_TIMEOUT).await?)
    }

    /// SIGSTOP: its connections stay open and nothing responds.
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

    /// Restarts a member on its port and data and waits until it responds; it may still be catching up.
    pub async fn restart(&mut self, member: usize) -> Result<(), Error> {
        self.paused[member] = false;
        Ok(self.members[member].restart().await?)
    }

    /// Changes a member's environment variables from its next [`Self::restart`] on.
    pub fn set_variables(&mut self, member: usize, variables: Vec<(OsString, OsString)>) {
        self.members[member].config_mut().variables = variables;
    }

    /// Steps the primary down for this period; returns which member it was.
    pub async fn step_down(&self, period: Duration) -> Result<usize, Error> {
        let primary = self.primary().await?;
        let seconds = i32::try_from(period.as_secs()).unwrap_or(i32::MAX);
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
        let found = try_wait_for(what, SETTLE_TIMEOUT, async || {
            let hellos = self.hellos().await;
            seen(&hellos).ok_or_else(|| describe(&hellos))
        });
        Ok(found.await?)
    }

    fn is_running(&self, member: usize) -> bool {
        !self.paused[member] && self.members[member].pid().is_some()
    }

    /// Every member's `hello` response; `None` for one that is down, paused or not responding.
    async fn hellos(&self) -> Vec<Option<Document>> {
        let asked = (0..self.members.len()).map(|member| self.hello(member));
        futures_util::future::join_all(asked).await
    }

    async fn hello(&self, member: usize) -> Option<Document> {
        if !self.is_running(member) {
            return None;
        }
        let client = self.members[member].direct_client().ok()?;
        let admin = client.database("admin");
        tokio::time::timeout(RESPONSE_TIMEOUT, async { admin.run_command(doc! { "hello": 1 }).await }).await.ok()?.ok()
    }
}

fn is_secondary(hello: &Option<Document>) -> bool {
    hello.as_ref().is_some_and(|hello| hello.get_bool("secondary").unwrap_or(false))
}

fn newest_primary(hellos: &[Option<Document>]) -> Option<usize> {
    let elected = |hello: &Option<Document>| -> Option<ObjectId> {
        let hello = hello.as_ref().filter(|hello| hello.get_bool("isWritablePrimary").unwrap_or(false))?;
        hello.get_object_id("electionId").ok()
    };
    let primaries = hellos.iter().enumerate().filter_map(|(member, hello)| Some((elected(hello)?, member)));
    primaries.max().map(|(_, member)| member)
}

fn describe(hellos: &[Option<Document>]) -> String {
    let role = |hello: &Option<Document>| match hello {
        None => "no response",
        Some(hello) if hello.get_bool("isWritablePrimary").unwrap_or(false) => "primary",
        Some(hello) if hello.get_bool("secondary").unwrap_or(false) => "secondary",
        Some(_) => "neither",
    };
    hellos.iter().map(role).collect::<Vec<_>>().join(", ")
}
