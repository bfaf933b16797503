//! Guesses of the word that an unknown word stands for.

/// Words of other balancers, and Plimsoll's for them.
const FOREIGN_WORDS: &[(&str, &str)] = &[
    ("algorithm", "strategy"),
    ("backend", "group"),
    ("backends", "members"),
    ("balance", "strategy"),
    ("bind", "address"),
    ("endpoints", "members"),
    ("ewma", "peak_ewma"),
    ("frontend", "listener"),
    ("hash", "rendezvous"),
    ("ip_hash", "rendezvous"),
    ("lb_policy", "strategy"),
    ("least_conn", "least_connections"),
    ("leastconn", "least_connections"),
    ("listen", "address"),
    ("maxconn", "max_connections"),
    ("outlier_detection", "outlier"),
    ("p2c", "least_request"),
    ("policy", "strategy"),
    ("port", "address"),
    ("retries", "retry"),
    ("ring_hash", "rendezvous"),
    ("server", "members"),
    ("servers", "members"),
    ("slowstart", "slow_start"),
    ("source", "rendezvous"),
    ("swrr", "weighted_round_robin"),
    ("target", "group"),
    ("targets", "members"),
    ("upstream", "group"),
    ("upstreams", "members"),
    ("url", "address"),
    ("weight", "capacity"),
    ("workers", "threads"),
    ("wrr", "weighted_round_robin"),
];

/// The least similarity of a guess: below it a guess is more confusing than none.
const MIN_SIMILARITY: f64 = 0.55;

/// Returns the allowed word that was probably meant.
pub(super) fn nearest<'a>(word: &str, allowed: &[&'a str]) -> Option<&'a str> {
    // The cost of the similarity is the product of the lengths.
    if word.len() > 64 {
        return None;
    }
    let word = word.to_lowercase().replace(['-', ' '], "_");
    if let Some((_, own_name)) = FOREIGN_WORDS.iter().find(|(foreign_name, _)| *foreign_name == word)
        && let Some(known_name) = allowed.iter().find(|name| *name == own_name)
    {
        return Some(known_name);
    }
    let score = |name: &str| strsim::normalized_damerau_levenshtein(&word, name);
    let best_match = allowed.iter().max_by(|a, b| score(a).total_cmp(&score(b)))?;
    (score(best_match) >= MIN_SIMILARITY).then_some(*best_match)
}

/// Names of existing values that are written in another form.
const OTHER_FORMS: &[(&str, &str)] =
    &[("expression", "write strategy = { expression = { weight = \"capacity / (1 + cpu)\" } }")];

/// Returns `did you mean …?` if there is a guess, and all that is allowed.
pub(super) fn hint(word: &str, allowed: &[&str]) -> String {
    if let Some((_, advice)) = OTHER_FORMS.iter().find(|(name, _)| *name == word) {
        return (*advice).to_owned();
    }
    let allowed_list = format!("allowed: {}", allowed.join(", "));
    match nearest(word, allowed) {
        Some(name) => format!("did you mean `{name}`?   {allowed_list}"),
        None => allowed_list,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typos_and_foreign_words_find_ours() {
        let keys = ["address", "group", "members", "strategy", "health", "capacity"];
        for (word, expected) in [
            ("adress", Some("address")),
            ("Members", Some("members")),
            ("stratgey", Some("strategy")),
            ("servers", Some("members")),
            ("weight", Some("capacity")),
            ("xyz", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, &keys), expected, "{word}");
        }
        assert_eq!(nearest("wrr", &keys), None, "only what is allowed is suggested");
        assert_eq!(nearest("round-robin", &["round_robin"]), Some("round_robin"));
        assert_eq!(nearest(&"a".repeat(1000), &keys), None);
    }
}
