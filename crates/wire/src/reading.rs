//! A member's [`Reading`] in an ORCA report: with each answer, as named metrics, so that balancers that know nothing of
//! them read the rest.
//!
//! | metric | field |
//! |---|---|
//! | `rif` | requests in flight |
//! | `knee` | requests that fit before they slow one another down |
//! | `work` | seconds that a request takes alone |
//! | `mean` | mean of the requests in flight |
//! | `sojourn` | seconds that a request takes now |
//! | `slot` | 1 if room for one more is promised |
//! | `full` | 1 if this answer only says that there is no room |

use std::io::Write as _;

use plimsoll_brain::meter::Reading;

use crate::orca::{self, Bad, Kind, Metric};

/// What a report says of the member itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Said {
    /// As the member's meter has it.
    pub reading: Reading,
    /// Was the request refused because there is no room?
    pub full: bool,
}

/// Reads the value of the header [`orca::HEADER`]; `None` if the report says nothing of this kind. Every metric,
/// those of other kinds too, is shown to `other`.
///
/// # Errors
/// The report is malformed: see [`orca::read`].
pub fn read(value: &[u8], mut other: impl FnMut(&Metric<'_>)) -> Result<Option<Said>, Bad> {
    let mut reading = Reading::default();
    let mut full = false;
    let mut found = false;
    orca::read(value, |metric| {
        if metric.kind == Kind::Named {
            let value = metric.value as f32;
            match metric.name {
                "rif" => (reading.in_flight, found) = (metric.value as u32, true),
                "knee" => reading.knee = value,
                "work" => reading.work = value,
                "mean" => reading.mean_in_flight = value,
                "sojourn" => reading.sojourn = value,
                "slot" => reading.slot = value > 0.0,
                "full" => full = value > 0.0,
                _ => {}
            }
        }
        other(&metric);
    })?;
    Ok(found.then_some(Said { reading, full }))
}

/// Appends a whole header line.
pub fn write(said: &Said, out: &mut Vec<u8>) {
    let Reading { in_flight, knee, work, mean_in_flight, sojourn, slot } = said.reading;
    // Writing to a vector cannot fail.
    let _ = write!(
        out,
        "{}: TEXT named_metrics.rif={in_flight}, named_metrics.knee={knee:.2}, named_metrics.work={work:.6}, \
         named_metrics.mean={mean_in_flight:.2}, named_metrics.sojourn={sojourn:.6}",
        orca::HEADER
    );
    if slot {
        out.extend_from_slice(b", named_metrics.slot=1");
    }
    if said.full {
        out.extend_from_slice(b", named_metrics.full=1");
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let reading = Reading {
            in_flight: 7,
            knee: 3.75,
            work: 0.0125,
            mean_in_flight: 5.5,
            sojourn: 0.021,
            slot: true,
        };
        for said in
            [Said { reading, full: false }, Said { reading: Reading { slot: false, ..reading }, full: true }]
        {
            let mut line = Vec::new();
            write(&said, &mut line);
            let value =
                line.strip_prefix(b"endpoint-load-metrics: ").and_then(|rest| rest.strip_suffix(b"\r\n"));
            let mut metrics = 0;
            assert_eq!(read(value.unwrap(), |_| metrics += 1), Ok(Some(said)));
            assert_eq!(metrics, 6);
        }
    }

    #[test]
    fn other_reports_say_nothing_of_the_kind() {
        let mut cpu = 0.0;
        let said = read(b"TEXT cpu_utilization=0.3, named_metrics.queue=4", |metric| {
            if metric.name == "cpu_utilization" {
                cpu = metric.value;
            }
        });
        assert_eq!((said, cpu), (Ok(None), 0.3));
        assert!(read(b"TEXT named_metrics.rif=NaN", |_| {}).is_err());
    }
}
