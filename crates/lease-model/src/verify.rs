//! Runs the checker over one cut and says what it found.

use std::fmt;
use std::time::{Duration, Instant};

use stateright::{Checker, HasDiscoveries, Model};

use crate::action::Action;
use crate::bounds::Bounds;
use crate::model::Protocol;
use crate::tally::Tally;

/// What a run found.
#[derive(Debug)]
pub struct Outcome {
    /// Different states.
    pub states: usize,
    /// Steps taken, to states new and known.
    pub steps: usize,
    /// The longest way that was needed to reach a state.
    pub depth: usize,
    pub took: Duration,
    /// The promises that were checked.
    pub checked: Vec<&'static str>,
    pub broken: Vec<Broken>,
    pub tally: Tally,
}

/// A promise, and a history that breaks it.
#[derive(Clone, Debug)]
pub struct Broken {
    pub promise: &'static str,
    pub history: Vec<Action>,
}

/// Visits every state within the bounds; or, if a promise is named, every state until one is found that breaks it.
pub fn verify(bounds: &Bounds, threads: usize, until_broken: Option<&'static str>) -> Outcome {
    let started = Instant::now();
    let model = Protocol::new(bounds.clone());
    let checked = model.properties().iter().map(|property| property.name).collect();
    let until = until_broken.map_or(HasDiscoveries::All, |promise| HasDiscoveries::AllOf([promise].into()));
    let checker = model.checker().threads(threads).finish_when(until).spawn_bfs().join();
    let found = checker.discoveries().into_iter();
    let mut broken: Vec<Broken> =
        found.map(|(promise, path)| Broken { promise, history: path.into_actions() }).collect();
    broken.sort_by_key(|broken| broken.history.len());
    Outcome {
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        took: started.elapsed(),
        checked,
        broken,
        tally: checker.model().tally.clone(),
    }
}

/// A shortest history that breaks the promise, if there is one. (What [`verify`] reports is short, not always shortest.)
pub fn shortest(bounds: &Bounds, promise: &'static str) -> Option<Broken> {
    let mut found: Option<Broken> = None;
    loop {
        let model = Protocol::new(bounds.clone()).checker().finish_when(HasDiscoveries::AllOf([promise].into()));
        // A history of n steps ends at depth n + 1.
        let search = match &found {
            Some(broken) => model.target_max_depth(broken.history.len() + 1),
            None => model,
        };
        match search.spawn_bfs().join().discovery(promise) {
            Some(path) => found = Some(Broken { promise, history: path.into_actions() }),
            None => return found,
        }
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "broken: {}, after {} steps", self.promise, self.history.len())?;
        for (number, action) in self.history.iter().enumerate() {
            writeln!(f, "  {:>3}. {action}", number + 1)?;
        }
        Ok(())
    }
}
