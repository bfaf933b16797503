//! The experiments that are part of the program.

/// The names and texts, in the order of `lab list`.
pub const EXPERIMENTS: &[(&str, &str)] = &[
    ("smoke", include_str!("../../../../experiments/smoke.toml")),
    ("l3b", include_str!("../../../../experiments/l3b.toml")),
    ("l3b-real", include_str!("../../../../experiments/l3b-real.toml")),
    ("ags-comparison", include_str!("../../../../experiments/ags-comparison.toml")),
    ("ags-failure", include_str!("../../../../experiments/ags-failure.toml")),
    ("ags-lottery", include_str!("../../../../experiments/ags-lottery.toml")),
    ("ags-lottery-sizes", include_str!("../../../../experiments/ags-lottery-sizes.toml")),
    ("ags-lottery-daemons", include_str!("../../../../experiments/ags-lottery-daemons.toml")),
    ("ags-lottery-static", include_str!("../../../../experiments/ags-lottery-static.toml")),
    ("ags-lottery-failure", include_str!("../../../../experiments/ags-lottery-failure.toml")),
    ("ags-lottery-cut-off", include_str!("../../../../experiments/ags-lottery-cut-off.toml")),
    ("cut-off", include_str!("../../../../experiments/cut-off.toml")),
    ("adaptive-healthy", include_str!("../../../../experiments/adaptive-healthy.toml")),
    ("adaptive-faults", include_str!("../../../../experiments/adaptive-faults.toml")),
    ("adaptive-faults-503", include_str!("../../../../experiments/adaptive-faults-503.toml")),
    ("adaptive-overload", include_str!("../../../../experiments/adaptive-overload.toml")),
    ("cygnus-4", include_str!("../../../../experiments/cygnus-4.toml")),
    ("cygnus-5", include_str!("../../../../experiments/cygnus-5.toml")),
    ("cygnus-7", include_str!("../../../../experiments/cygnus-7.toml")),
    ("cygnus-9", include_str!("../../../../experiments/cygnus-9.toml")),
    ("cygnus-10", include_str!("../../../../experiments/cygnus-10.toml")),
    ("cygnus-12", include_str!("../../../../experiments/cygnus-12.toml")),
    ("cygnus-13", include_str!("../../../../experiments/cygnus-13.toml")),
    ("cygnus-14", include_str!("../../../../experiments/cygnus-14.toml")),
    ("cygnus-15", include_str!("../../../../experiments/cygnus-15.toml")),
    ("cygnus-16", include_str!("../../../../experiments/cygnus-16.toml")),
    ("cygnus-17", include_str!("../../../../experiments/cygnus-17.toml")),
    ("cygnus-9-iiop", include_str!("../../../../experiments/cygnus-9-iiop.toml")),
    ("cygnus-10-iiop", include_str!("../../../../experiments/cygnus-10-iiop.toml")),
    ("cygnus-12-iiop", include_str!("../../../../experiments/cygnus-12-iiop.toml")),
    ("cygnus-13-iiop", include_str!("../../../../experiments/cygnus-13-iiop.toml")),
    ("cygnus-14-iiop", include_str!("../../../../experiments/cygnus-14-iiop.toml")),
    ("cygnus-15-iiop", include_str!("../../../../experiments/cygnus-15-iiop.toml")),
    ("cygnus-16-iiop", include_str!("../../../../experiments/cygnus-16-iiop.toml")),
    ("cygnus-17-iiop", include_str!("../../../../experiments/cygnus-17-iiop.toml")),
    ("tao-6", include_str!("../../../../experiments/tao-6.toml")),
    ("tao-8", include_str!("../../../../experiments/tao-8.toml")),
    ("tao-9", include_str!("../../../../experiments/tao-9.toml")),
    ("tao-8-iiop", include_str!("../../../../experiments/tao-8-iiop.toml")),
    ("tao-9-iiop", include_str!("../../../../experiments/tao-9-iiop.toml")),
    ("sessions-at-rest", include_str!("../../../../experiments/sessions-at-rest.toml")),
    ("lqn-4", include_str!("../../../../experiments/lqn-4.toml")),
    ("lqn-5", include_str!("../../../../experiments/lqn-5.toml")),
    ("lqn-6", include_str!("../../../../experiments/lqn-6.toml")),
    ("lqn-8", include_str!("../../../../experiments/lqn-8.toml")),
    ("lqn-9", include_str!("../../../../experiments/lqn-9.toml")),
    ("lqn-stale", include_str!("../../../../experiments/lqn-stale.toml")),
    ("scaler-day", include_str!("../../../../experiments/scaler-day.toml")),
    ("fleet-herd", include_str!("../../../../experiments/fleet-herd.toml")),
    ("shared-hosts", include_str!("../../../../experiments/shared-hosts.toml")),
];

/// The models that experiments name, all of them.
pub const MODELS: [(&str, &str); 2] = [
    ("h-orb", include_str!("../../../../experiments/models/h-orb.lqn")),
    ("f-orb", include_str!("../../../../experiments/models/f-orb.lqn")),
];

/// Returns the text of the model with this name.
pub fn model(name: &str) -> Option<&'static str> {
    MODELS.iter().find(|(model_name, _)| *model_name == name).map(|(_, text)| *text)
}

/// Returns the text of the experiment with this name.
pub fn find_experiment(name: &str) -> Option<&'static str> {
    EXPERIMENTS.iter().find(|(experiment_name, _)| *experiment_name == name).map(|(_, text)| *text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::experiment::{Experiment, RunLength};
    use crate::lab::plan;

    #[test]
    fn all_can_be_read_and_have_points_and_claims() {
        for (name, text) in EXPERIMENTS {
            let experiment = Experiment::parse(text).unwrap_or_else(|errors| panic!("{name}: {errors:?}"));
            assert!(!experiment.claims.is_empty() && !experiment.figures.is_empty(), "{name}");
            for mode in [RunLength::Quick, RunLength::Full] {
                assert!(!plan::points(&experiment, mode).is_empty(), "{name}");
            }
            let budget = plan::estimated_time(
                &experiment,
                RunLength::Quick,
                &plan::points(&experiment, RunLength::Quick),
            );
            assert!(budget.as_secs() < 600, "{name}: a quick run takes {budget:?}");
        }
    }

    #[test]
    fn every_file_of_the_folder_is_there() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../experiments");
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            assert_eq!(
                find_experiment(&name),
                std::fs::read_to_string(&path).ok().as_deref(),
                "{name} is not embedded"
            );
        }
    }
}
