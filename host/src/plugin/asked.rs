//! Batches with only the columns that a plugin asks for, so that one which forgets to ask fails in every trial and not in a run.

use super::Needs;
use super::adapters::preference;
use super::columns::{ENTROPY, MEAN_LOGITS, REF_LOGP, SAMPLING_LOGP, VALUE};
use super::old::{Examples, Pairs, Rollouts, Side, Tokens};
use std::borrow::Cow;

/// Returns a generation with only the columns asked for. It never has entropies.
pub(super) fn rollouts<'a>(given: &'a Rollouts, needs: &Needs) -> Cow<'a, Rollouts> {
    let mut asked = Cow::Borrowed(given);
    if !needs.has(REF_LOGP) && given.ref_logp.is_some() {
        asked.to_mut().ref_logp = None;
    }
    if !needs.has(VALUE) && given.values.is_some() {
        asked.to_mut().values = None;
    }
    if given.entropy.is_some() {
        asked.to_mut().entropy = None;
    }
    asked
}

/// Returns a micro-batch of completions with only the columns asked for.
pub(super) fn tokens<'a>(given: &'a Tokens, needs: &Needs) -> Cow<'a, Tokens> {
    let mut asked = Cow::Borrowed(given);
    if !needs.has(REF_LOGP) && given.ref_logp.is_some() {
        asked.to_mut().ref_logp = None;
    }
    if !needs.has(SAMPLING_LOGP) && given.sampling_logp.is_some() {
        asked.to_mut().sampling_logp = None;
    }
    if !needs.has(ENTROPY) && given.entropy.is_some() {
        asked.to_mut().entropy = None;
    }
    if !needs.has(VALUE) && (given.values.is_some() || given.old_values.is_some() || given.returns.is_some()) {
        let tokens = asked.to_mut();
        (tokens.values, tokens.old_values, tokens.returns) = (None, None, None);
    }
    asked
}

/// Returns a micro-batch of pairs as the contract has it, with only the columns asked for.
pub(super) fn pairs(given: &Pairs, needs: &Needs) -> preference::Pairs {
    let side = |side: &Side| preference::Side {
        offsets: side.offsets.clone(),
        logp: side.logp.clone(),
        ref_logp: side.ref_logp.clone().filter(|_| needs.has(REF_LOGP)),
        mean_logits: side.mean_logits.clone().filter(|_| needs.has(MEAN_LOGITS)),
    };
    preference::Pairs { step: given.step, chosen: side(&given.chosen), rejected: side(&given.rejected), scale: given.scale }
}

/// Returns a micro-batch of labelled completions with only the columns asked for, and `mismatched` completions if they are.
pub(super) fn examples<'a>(given: &'a Examples, needs: &Needs, mismatched: bool) -> Cow<'a, Examples> {
    let mut asked = Cow::Borrowed(given);
    if !needs.has(REF_LOGP) && given.ref_logp.is_some() {
        asked.to_mut().ref_logp = None;
    }
    if !needs.has(MEAN_LOGITS) && given.mean_logits.is_some() {
        asked.to_mut().mean_logits = None;
    }
    if !mismatched && given.mismatched.is_some() {
        asked.to_mut().mismatched = None;
    }
    asked
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::{Mismatched, Scale};

    const SCALE: Scale = Scale { rows: 1, tokens: 1, max_completion_length: 1 };

    fn needs(name: &str) -> Needs {
        [name].into_iter().collect()
    }

    fn given() -> Tokens {
        let column = || Some(vec![0.0]);
        Tokens {
            step: 1,
            offsets: vec![0, 1],
            mask: vec![1],
            advantages: vec![0.0],
            logp: vec![0.0],
            old_logp: vec![0.0],
            ref_logp: column(),
            sampling_logp: column(),
            entropy: column(),
            values: column(),
            old_values: column(),
            returns: column(),
            scale: SCALE,
        }
    }

    #[test]
    fn a_loss_gets_only_the_columns_asked_for() {
        let sent = |needs: Needs| {
            let given = given();
            let t = super::tokens(&given, &needs);
            [&t.ref_logp, &t.sampling_logp, &t.entropy, &t.values, &t.old_values, &t.returns].map(Option::is_some)
        };
        let none = Needs::default;
        assert_eq!(sent(none()), [false; 6]);
        assert_eq!(sent(needs(REF_LOGP)), [true, false, false, false, false, false]);
        assert_eq!(sent(needs(SAMPLING_LOGP)), [false, true, false, false, false, false]);
        assert_eq!(sent(needs(ENTROPY)), [false, false, true, false, false, false]);
        assert_eq!(sent(needs(VALUE)), [false, false, false, true, true, true]);
    }
    #[test]
    fn losses_of_pairs_and_of_labelled_completions_do_so_too() {
        let column = || Some(vec![0.0]);
        let side = || Side {
            offsets: vec![0, 1],
            logp: vec![0.0],
            ref_logp: column(),
            mean_logits: column(),
            log_sum_squares: column(),
        };
        let given = Pairs { step: 1, chosen: side(), rejected: side(), prompts: None, scale: SCALE };
        let none = Needs::default;
        let sent = |needs: Needs| {
            let sides = super::pairs(&given, &needs);
            [sides.chosen, sides.rejected].map(|side| (side.ref_logp.is_some(), side.mean_logits.is_some()))
        };
        assert_eq!(sent(none()), [(false, false); 2]);
        assert_eq!(sent(needs(REF_LOGP)), [(true, false); 2]);
        assert_eq!(sent(needs(MEAN_LOGITS)), [(false, true); 2]);

        let mismatched = Mismatched { logp: vec![0.0], ref_logp: vec![0.0] };
        let given = Examples {
            step: 1,
            labels: vec![true],
            desirable: 1,
            undesirable: 0,
            offsets: vec![0, 1],
            logp: vec![0.0],
            ref_logp: Some(vec![0.0]),
            mean_logits: Some(vec![0.0]),
            mismatched: Some(mismatched),
            scale: SCALE,
        };
        let sent = |needs: Needs, mismatched: bool| {
            let e = super::examples(&given, &needs, mismatched).into_owned();
            [e.ref_logp.is_some(), e.mean_logits.is_some(), e.mismatched.is_some()]
        };
        assert_eq!(sent(none(), false), [false; 3]);
        assert_eq!(sent(needs(REF_LOGP), true), [true, false, true]);
        assert_eq!(sent(needs(MEAN_LOGITS), false), [false, true, false]);
    }
}
