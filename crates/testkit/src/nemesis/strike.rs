//! One fault, carried out, and what undoes it.

use super::fault::{BrokerHarm, FarEnd, Fault, LinkHarm, PodHarm, PrimaryHarm, Whom};
use super::oversleep::{Sleeper, awaken, fall_asleep};
use crate::cluster::{Error, House, Standing};

/// What undoes a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mend {
    StartPod(usize),
    ResumePod(usize),
    Awaken(Sleeper),
    HealLink(usize, FarEnd),
    HealStore,
    RestartBroker,
    ResumeBroker,
    /// Faults inside the broker had struck so often before.
    Disarm(u64),
}

/// Whom a strike is aimed at.
pub(super) struct Victim<'a> {
    pub(super) house: &'a mut House,
    /// Of whatever else is left to chance.
    pub(super) seed: u32,
    /// What is broken already.
    pub(super) open: Vec<Mend>,
}

/// Armed as often as it may strike: a fault lasts until it is disarmed.
const ALWAYS: &str = "1000000000";

/// Strikes; `None` when there was nobody to strike. `Some(None)` needs no mending.
pub(super) async fn strike(victim: Victim<'_>, fault: Fault) -> Result<Option<Option<Mend>>, Error> {
    match fault {
        Fault::Pod(whom, harm) => strike_pod(victim.house, whom, harm).await,
        Fault::Primary(harm) => strike_primary(victim.house, harm).await,
        Fault::Broker(harm) => strike_broker(victim, harm).await,
        Fault::Link(whom, far_end, harm) => strike_link(victim, whom, far_end, harm).await,
    }
}

async fn strike_pod(house: &mut House, whom: Whom, harm: PodHarm) -> Result<Option<Option<Mend>>, Error> {
    let Some(victim) = find(house, whom).await else { return Ok(None) };
    Ok(match harm {
        PodHarm::Kill => house.pod_mut(victim).kill().await.then_some(Some(Mend::StartPod(victim))),
        PodHarm::Pause => {
            house.pod_mut(victim).pause().await;
            Some(Some(Mend::ResumePod(victim)))
        }
        PodHarm::Oversleep => fall_asleep(house, victim).await.map(|sleeper| Some(Mend::Awaken(sleeper))),
        PodHarm::Terminate => {
            house.pod_mut(victim).terminate();
            Some(Some(Mend::StartPod(victim)))
        }
        // Without a primary the lease is in nobody's reach.
        PodHarm::Depose => house.depose().await.unwrap_or(false).then_some(None),
    })
}

async fn strike_primary(house: &mut House, harm: PrimaryHarm) -> Result<Option<Option<Mend>>, Error> {
    let store = house.store_mut();
    if !store.is_whole() {
        return Ok(None);
    }
    match harm {
        PrimaryHarm::Kill => store.kill_primary().await?,
        PrimaryHarm::Pause => store.pause_primary().await?,
        PrimaryHarm::StepDown => return Ok(store.step_down().await.is_ok().then_some(None)),
    }
    Ok(Some(Some(Mend::HealStore)))
}

async fn strike_broker(victim: Victim<'_>, harm: BrokerHarm) -> Result<Option<Option<Mend>>, Error> {
    let broker = victim.house.broker_mut();
    if broker.standing() != Standing::Up {
        return Ok(None);
    }
    let armed = match harm {
        BrokerHarm::Kill => {
            broker.kill().await;
            return Ok(Some(Some(Mend::RestartBroker)));
        }
        BrokerHarm::Pause => {
            broker.pause().await;
            return Ok(Some(Some(Mend::ResumeBroker)));
        }
        BrokerHarm::Throttle => ("server_busy", 8),
        BrokerHarm::LoseAcknowledgements => ("lose_acknowledgement", 40),
    };
    // One at a time, so that what strikes from now on is this one.
    if victim.open.iter().any(|open| matches!(open, Mend::Disarm(_))) {
        return Ok(None);
    }
    // A broker that is too busy to be asked is left in peace.
    let Ok(before) = broker.struck().await else { return Ok(None) };
    let (kind, one_in) = armed;
    let (topic, seed) = (broker.topic(), victim.seed);
    let fault =
        format!(r#"{{"kind": "{kind}", "entity": "{topic}", "times": {ALWAYS}, "one_in": {one_in}, "seed": {seed}}}"#);
    Ok(broker.arm(&fault).await.is_ok().then_some(Some(Mend::Disarm(before))))
}

async fn strike_link(
    Victim { house, open, .. }: Victim<'_>,
    whom: Whom,
    far_end: FarEnd,
    harm: LinkHarm,
) -> Result<Option<Option<Mend>>, Error> {
    let Some(pod) = find(house, whom).await else { return Ok(None) };
    let mend = Mend::HealLink(pod, far_end);
    match house.pod(pod).link(far_end).filter(|_| !open.contains(&mend)) {
        None => Ok(None),
        Some(link) => {
            link.inject(harm.fault()).await;
            Ok(Some(Some(mend)))
        }
    }
}

/// A pod that is up, of this kind.
async fn find(house: &mut House, whom: Whom) -> Option<usize> {
    let leader = house.leader().await;
    let up = |number: &usize| house.pod(*number).standing() == Standing::Up;
    match whom {
        Whom::Leader => leader.filter(up),
        Whom::Standby => (0..house.pods().len()).filter(|number| Some(*number) != leader).find(up),
    }
}

/// Undoes it; returns how often the fault struck since, where that is known.
pub(super) async fn mend(house: &mut House, mend: Mend) -> Result<u64, Error> {
    match mend {
        Mend::StartPod(pod) if house.pod(pod).standing() == Standing::Down => house.restart_pod(pod).await?,
        Mend::ResumePod(pod) => house.pod_mut(pod).resume(),
        Mend::Awaken(sleeper) => return Ok(awaken(house, sleeper).await),
        Mend::HealLink(pod, far_end) => {
            if let Some(link) = house.pod(pod).link(far_end) {
                link.heal().await;
            }
        }
        Mend::HealStore => house.store_mut().heal().await?,
        Mend::RestartBroker if house.broker().standing() == Standing::Down => house.broker_mut().restart().await?,
        Mend::ResumeBroker => house.broker_mut().resume(),
        Mend::Disarm(before) => {
            // A broker that was killed meanwhile has forgotten them and their count; one that cannot be asked now is healed at the end.
            let since = house.broker().struck().await.unwrap_or(0);
            let _ = house.broker().disarm().await;
            return Ok(since.saturating_sub(before));
        }
        Mend::StartPod(_) | Mend::RestartBroker => {}
    }
    Ok(0)
}
