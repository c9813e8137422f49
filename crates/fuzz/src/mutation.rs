//! Changes an input in the ways that parsers trip over: flipped bits, false lengths, pieces that are missing, doubled or swapped.

use rand::RngExt;
use rand::rngs::StdRng;

/// Longer inputs find little more and cost time.
const MAX_INPUT: usize = 64 << 10;

/// Numbers at the edges of length fields.
const EDGES: [u32; 10] = [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff];

/// One to eight changes.
pub(crate) fn mutate(input: &mut Vec<u8>, others: &[Vec<u8>], dictionary: &[&[u8]], random: &mut StdRng) {
    for _ in 0..random.random_range(1..=8) {
        change_once(input, others, dictionary, random);
        input.truncate(MAX_INPUT);
    }
}

fn change_once(input: &mut Vec<u8>, others: &[Vec<u8>], dictionary: &[&[u8]], random: &mut StdRng) {
    let at = random.random_range(0..=input.len());
    match random.random_range(0..10) {
        0 => input.truncate(at),
        1 => insert(input, at, &random.random::<[u8; 4]>()[..random.random_range(1..=4)]),
        2 => drop(input.drain(at..(at + random.random_range(0..=16)).min(input.len()))),
        3 => {
            let piece = piece_of(input, random);
            insert(input, at, &piece.repeat(random.random_range(1..=20)));
        }
        4 if !others.is_empty() => {
            let piece = piece_of(&others[random.random_range(0..others.len())], random);
            insert(input, at, &piece);
        }
        5 if !dictionary.is_empty() => insert(input, at, dictionary[random.random_range(0..dictionary.len())]),
        6 => {
            let edge = EDGES[random.random_range(0..EDGES.len())];
            let bytes = if random.random() { edge.to_be_bytes() } else { edge.to_le_bytes() };
            let width = [1, 2, 4][random.random_range(0..3)];
            overwrite(input, at, if random.random() { &bytes[..width] } else { &bytes[4 - width..] });
        }
        7 => overwrite(input, at, &[random.random()]),
        _ => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << random.random_range(0..8);
            }
        }
    }
}

fn piece_of(input: &[u8], random: &mut StdRng) -> Vec<u8> {
    let from = random.random_range(0..=input.len());
    let to = (from + random.random_range(0..=64)).min(input.len());
    input[from..to].to_vec()
}

fn insert(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    input.splice(at..at, bytes.iter().copied());
}

fn overwrite(input: &mut [u8], at: usize, bytes: &[u8]) {
    let to = (at + bytes.len()).min(input.len());
    input[at..to].copy_from_slice(&bytes[..to - at]);
}
