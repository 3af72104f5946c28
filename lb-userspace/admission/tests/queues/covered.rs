//! How well a hand of queues keeps a light flow apart from heavy ones.

/// The probability that every queue of a random hand is also in one of `heavy` other random hands
/// (all of `hand_size` out of `queues`): a light flow then finds no queue without a heavy flow.
///
/// `hand_size` is at most `queues`. The cost is proportional to the product of all three.
pub fn covered_probability(queues: u32, hand_size: u32, heavy: u32) -> f64 {
    let hand = hand_size as usize;
    // The probability that the heavy hands cover so many queues.
    let mut covered = vec![0.0; queues as usize + 1];
    covered[0] = 1.0;
    for _ in 0..heavy {
        let mut next = vec![0.0; covered.len()];
        for (before, &likely) in covered
            .iter()
            .enumerate()
            .filter(|(_, likely)| **likely > 0.0)
        {
            for shared in 0..=hand.min(before) {
                let fresh = hand - shared;
                if before + fresh <= queues as usize {
                    next[before + fresh] += likely * shares(queues, before, hand_size, shared);
                }
            }
        }
        covered = next;
    }
    let all_covered = |(covered, likely)| likely * shares(queues, covered, hand_size, hand);
    covered.into_iter().enumerate().map(all_covered).sum()
}

/// The expected number of queues that `heavy` random hands of `hand_size` out of `queues` cover
/// together.
pub fn expected_covered(queues: u32, hand_size: u32, heavy: u32) -> f64 {
    let untouched = 1.0 - f64::from(hand_size) / f64::from(queues);
    f64::from(queues) * (1.0 - untouched.powf(f64::from(heavy)))
}

/// The probability that a random hand contains exactly `shared` of the `marked` queues.
fn shares(queues: u32, marked: usize, hand_size: u32, shared: usize) -> f64 {
    let (queues, hand) = (queues as usize, hand_size as usize);
    choose(marked, shared) * choose(queues - marked, hand - shared) / choose(queues, hand)
}

/// Binomial coefficient; zero if there are fewer than `k`.
fn choose(n: usize, k: usize) -> f64 {
    if k > n {
        return 0.0;
    }
    (0..k)
        .map(|index| (n - index) as f64 / (k - index) as f64)
        .product()
}
