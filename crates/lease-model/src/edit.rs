//! A walk over every name and number in a world, in a fixed order.

use crate::checkpoint::{Errand, Reply};
use crate::pod::Pod;
use crate::stored::{Ask, Edition, Nonce, What};
use crate::world::World;

/// Something done to every name and number of a kind.
pub trait Editor {
    fn nonce(&mut self, _: &mut Nonce) {}
    fn term(&mut self, _: &mut u8) {}
    fn beat(&mut self, _owner: Nonce, _: &mut u8) {}
    /// The highest heartbeat a pod ever tried to write.
    fn beats(&mut self, _owner: Nonce, _: &mut u8) {}
}

impl World {
    pub fn edit(&mut self, editor: &mut impl Editor) {
        if let Some(lease) = &mut self.store.majority {
            lease.glance.edition.edit(editor);
        }
        for write in self.store.alone.iter_mut().flatten() {
            write.lease.glance.edition.edit(editor);
            editor.nonce(&mut write.awaited_by);
        }
        self.pods.iter_mut().for_each(|pod| pod.edit(editor));
        self.late.iter_mut().flatten().for_each(|ask| ask.edit(editor));
        self.late_errands.iter_mut().flatten().for_each(|errand| errand.edit(editor));
        editor.term(&mut self.checkpoint.term);
        editor.nonce(&mut self.checkpoint.claimant);
        editor.term(&mut self.ghost.granted);
    }

    /// A contender that nobody remembers.
    pub fn unused_nonce(&self) -> Nonce {
        let mut known = Known([false; 256]);
        { *self }.edit(&mut known);
        let unused = (1..=u8::MAX).find(|number| !known.0[usize::from(*number)]);
        Nonce(unused.expect("few contenders are remembered"))
    }
}

struct Known([bool; 256]);

impl Editor for Known {
    fn nonce(&mut self, nonce: &mut Nonce) {
        self.0[usize::from(nonce.0)] = true;
    }
}

impl Pod {
    pub fn edit(&mut self, editor: &mut impl Editor) {
        editor.beats(self.nonce, &mut self.beats);
        if let Some(stood_down) = &mut self.stood_down {
            editor.term(&mut stood_down.term);
        }
        if let Some(sight) = &mut self.sight {
            editor.term(&mut sight.highest);
            sight.seen.iter_mut().for_each(|glance| glance.edition.edit(editor));
        }
        if let Some(look) = &mut self.look {
            look.found.iter_mut().for_each(|glance| glance.edition.edit(editor));
        }
        if let Some(hold) = &mut self.hold {
            editor.term(&mut hold.term);
            hold.raising_above.iter_mut().for_each(|floor| editor.term(floor));
        }
        if let Some(asked) = &mut self.asked {
            asked.ask.edit(editor);
        }
        if let Some(errand) = &mut self.work.errand {
            errand.edit(editor);
        }
        editor.nonce(&mut self.nonce);
    }
}

impl Edition {
    fn edit(&mut self, editor: &mut impl Editor) {
        editor.beat(self.holder, &mut self.beat);
        editor.term(&mut self.term);
        editor.nonce(&mut self.holder);
    }
}

impl Ask {
    fn edit(&mut self, editor: &mut impl Editor) {
        let by = self.by;
        match &mut self.what {
            What::Create { term, beat } | What::Renew { term, beat } => {
                editor.term(term);
                editor.beat(by, beat);
            }
            What::Take { seen, term, beat } | What::TakeIfExpired { seen, term, beat, .. } => {
                seen.edit(editor);
                editor.term(term);
                editor.beat(by, beat);
            }
            What::Raise { term, to, beat } => {
                editor.term(term);
                editor.term(to);
                editor.beat(by, beat);
            }
            What::Release { term } => editor.term(term),
            What::Doomed => {}
        }
        editor.nonce(&mut self.by);
    }
}

impl Errand {
    fn edit(&mut self, editor: &mut impl Editor) {
        editor.term(&mut self.term);
        if let Some(Reply::Refused { seen }) = &mut self.reply {
            editor.term(seen);
        }
        editor.nonce(&mut self.by);
    }
}
