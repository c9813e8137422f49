//! A contest for one lease between real processes, and the judge of what they did.
//!
//! Any program can serve as a contender: it calls [`serve_if_asked`] first, and [`Contest::contender`] starts the same
//! program again with its task in the environment. So there is no second binary that could be missing or stale. All
//! moments are of the boot clock, which the processes of one machine share.

mod contender;
mod contestant;
mod judge;
mod report;
mod seeds;
mod wall_clock;

pub use contender::{Engine, Task, serve_if_asked};
pub use contestant::{Contest, Contestant};
pub use judge::{Interval, Judgement, judge};
pub use report::{LateSave, Millis, Report};
pub use wall_clock::WallClock;
