//! One fault, carried out, and what undoes it.

use super::fault::{BrokerHarm, FarEnd, Fault, LinkHarm, PodHarm, PrimaryHarm, Whom};
use crate::cluster::{Error, House, Standing};

/// What undoes a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mend {
    StartPod(usize),
    ResumePod(usize),
    HealLink(usize, FarEnd),
    HealStore,
    RestartBroker,
    ResumeBroker,
    Disarm,
}

/// Armed as often as it may strike: a fault lasts until it is disarmed.
const ALWAYS: &str = "1000000000";

/// Strikes; `None` when there was nobody to strike. `Some(None)` needs no mending.
pub(super) async fn strike<'a>(
    house: &mut House,
    fault: Fault,
    open: impl Iterator<Item = &'a Mend>,
) -> Result<Option<Option<Mend>>, Error> {
    let open: Vec<Mend> = open.copied().collect();
    match fault {
        Fault::Pod(whom, harm) => strike_pod(house, whom, harm).await,
        Fault::Primary(harm) => strike_primary(house, harm).await,
        Fault::Broker(harm) => strike_broker(house, harm, &open).await,
        Fault::Link(whom, far_end, harm) => strike_link(house, whom, far_end, harm, &open).await,
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

async fn strike_broker(house: &mut House, harm: BrokerHarm, open: &[Mend]) -> Result<Option<Option<Mend>>, Error> {
    let broker = house.broker_mut();
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
        BrokerHarm::LoseAcknowledgements => ("lose_acknowledgement", 100),
    };
    if open.contains(&Mend::Disarm) {
        return Ok(None);
    }
    let (kind, one_in) = armed;
    let (topic, seed) = (broker.topic(), rand::random::<u32>());
    let fault =
        format!(r#"{{"kind": "{kind}", "entity": "{topic}", "times": {ALWAYS}, "one_in": {one_in}, "seed": {seed}}}"#);
    // A broker that is too busy to be asked is left in peace.
    Ok(broker.arm(&fault).await.is_ok().then_some(Some(Mend::Disarm)))
}

async fn strike_link(
    house: &mut House,
    whom: Whom,
    far_end: FarEnd,
    harm: LinkHarm,
    open: &[Mend],
) -> Result<Option<Option<Mend>>, Error> {
    let Some(victim) = find(house, whom).await else { return Ok(None) };
    let mend = Mend::HealLink(victim, far_end);
    match house.pod(victim).link(far_end).filter(|_| !open.contains(&mend)) {
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

pub(super) async fn mend(house: &mut House, mend: Mend) -> Result<(), Error> {
    match mend {
        Mend::StartPod(pod) if house.pod(pod).standing() == Standing::Down => house.restart_pod(pod).await,
        Mend::ResumePod(pod) => {
            house.pod_mut(pod).resume();
            Ok(())
        }
        Mend::HealLink(pod, far_end) => {
            if let Some(link) = house.pod(pod).link(far_end) {
                link.heal().await;
            }
            Ok(())
        }
        Mend::HealStore => house.store_mut().heal().await,
        Mend::RestartBroker if house.broker().standing() == Standing::Down => house.broker_mut().restart().await,
        Mend::ResumeBroker => {
            house.broker_mut().resume();
            Ok(())
        }
        Mend::Disarm => {
            // A broker that was killed meanwhile has forgotten them; one that cannot be asked now is healed at the end.
            let _ = house.broker().disarm().await;
            Ok(())
        }
        Mend::StartPod(_) | Mend::RestartBroker => Ok(()),
    }
}
