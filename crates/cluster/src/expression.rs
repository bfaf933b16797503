//! Expressions over a member's figures: `cpu * 0.7 + in_flight / 100`.
//!
//! The language is that of Jinja's expressions, evaluated by minijinja. It has numbers, `+ - * / // % **`,
//! comparisons, `and or not`, `a if test else b`, `x is defined`, and filters such as `[cpu, memory]|max`,
//! `cpu|default(0.5)`. Integers and decimals may be mixed. `/` never rounds, and a division by zero is an
//! error rather than an infinity. There are no loops, and each evaluation has a limit on steps, so that it
//! takes microseconds.
//!
//! A text that is a single name refers to that figure; it may contain dots and colons, as names of metrics
//! do. Within an expression a name may have dots (`utilization.queue * 2`).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::sync::LazyLock;

use minijinja::value::Value;
use minijinja::{Environment, ErrorKind, UndefinedBehavior};

/// The maximum length of an expression, in bytes.
pub const MAX_EXPRESSION_LENGTH: usize = 1024;

/// The maximum length of a figure's name, in bytes.
pub(crate) const MAX_NAME_LENGTH: usize = 64;

/// The maximum number of steps of one evaluation.
const MAX_STEPS: u64 = 10_000;

/// A number as a function of named numbers.
#[derive(Clone)]
pub struct Expression {
    text: String,
    /// The names of its figures, sorted.
    names: Vec<String>,
    form: ExpressionForm,
}

#[derive(Clone)]
enum ExpressionForm {
    Name,
    Program(std::sync::Arc<minijinja::Expression<'static, 'static>>),
}

/// The error in the text of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpressionError {
    /// The range in the text, in bytes.
    pub span: Range<usize>,
    /// The reason: one line that follows the expression in messages.
    pub why: String,
}

impl Expression {
    /// Parses an expression.
    ///
    /// # Errors
    /// The text is too long, is not an expression, uses an unknown filter or function, or does not evaluate
    /// to a number.
    pub fn new(text: &str) -> Result<Self, ExpressionError> {
        let whole_text = 0..text.len();
        let invalid = |reason: String| ExpressionError { span: whole_text.clone(), why: reason };
        if text.trim().is_empty() {
            return Err(invalid("is empty".into()));
        }
        if text.len() > MAX_EXPRESSION_LENGTH {
            return Err(invalid(format!("is longer than {MAX_EXPRESSION_LENGTH} characters")));
        }
        if is_name(text) && !CONSTANTS.contains(&text) {
            return Ok(Self { text: text.into(), names: vec![text.into()], form: ExpressionForm::Name });
        }
        let program = ENVIRONMENT
            .compile_expression_owned(text.to_owned())
            .map_err(|error| convert_error(text, &error))?;
        let mut names: Vec<String> = program.undeclared_variables(true).into_iter().collect();
        names.sort_unstable();
        let form = ExpressionForm::Program(std::sync::Arc::new(program));
        let expression = Self { text: text.into(), names, form };
        expression.dry_run(text)?;
        Ok(expression)
    }

    /// Returns the text as written.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the names of its figures, sorted.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Evaluates the expression with the values that `lookup` returns.
    ///
    /// # Errors
    /// One line: a required name has no value, a division by zero, or a result that is not a finite number.
    pub fn eval(&self, mut lookup: impl FnMut(&str) -> Option<f64>) -> Result<f64, String> {
        let value = match &self.form {
            ExpressionForm::Name => {
                lookup(&self.text).ok_or_else(|| format!("`{}` is not known", self.text))?
            }
            ExpressionForm::Program(program) => {
                let (mut variables, mut missing) = (VariableTree::default(), Vec::new());
                for name in &self.names {
                    let value = lookup(name);
                    variables.insert(name, value);
                    missing.extend(value.is_none().then_some(name.as_str()));
                }
                let value = program.eval(variables.value()).map_err(|error| {
                    match (missing.is_empty(), error.kind()) {
                        // A missing value is the reason for any other error.
                        (false, _) => format!("`{}` is not known", missing.join("`, `")),
                        (true, ErrorKind::OutOfFuel) => format!("it takes more than {MAX_STEPS} steps"),
                        (true, _) => error_line(&error),
                    }
                })?;
                f64::try_from(value.clone()).map_err(|_| format!("it gives {value}, not a number"))?
            }
        };
        if value.is_finite() { Ok(value) } else { Err(format!("it gives {value}")) }
    }

    /// Finds errors that only appear in an evaluation, and do not depend on the numbers.
    fn dry_run(&self, text: &str) -> Result<(), ExpressionError> {
        let ExpressionForm::Program(program) = &self.form else { return Ok(()) };
        let mut last_error = None;
        for number in [0.5, 1.0, 3.0] {
            let mut variables = VariableTree::default();
            self.names.iter().for_each(|name| variables.insert(name, Some(number)));
            match program.eval(variables.value()) {
                Ok(value) if f64::try_from(value.clone()).is_ok() => return Ok(()),
                Ok(value) => {
                    let reason = format!("gives {value}, not a number");
                    last_error = Some(ExpressionError { span: 0..text.len(), why: reason });
                }
                Err(error) => last_error = Some(convert_error(text, &error)),
            }
        }
        // At least one number must yield a number.
        last_error.map_or(Ok(()), Err)
    }
}

/// The values of names. A name with dots is a nested value, where the language looks for it.
#[derive(Default)]
struct VariableTree {
    number: Option<f64>,
    children: BTreeMap<String, Self>,
}

impl VariableTree {
    /// Inserts a value. Without one the name is undefined, but the objects that contain it are defined.
    fn insert(&mut self, name: &str, number: Option<f64>) {
        let (parents, last) = match name.rsplit_once('.') {
            Some((parents, last)) => (parents.split('.').collect(), last),
            None => (Vec::new(), name),
        };
        let node = parents
            .into_iter()
            .fold(self, |tree, segment| tree.children.entry(segment.to_owned()).or_default());
        if number.is_some() {
            node.children.entry(last.to_owned()).or_default().number = number;
        }
    }

    fn value(self) -> Value {
        match self.number.filter(|_| self.children.is_empty()) {
            Some(number) => Value::from(number),
            None => Value::from_pairs(self.children.into_iter().map(|(name, child)| (name, child.value()))),
        }
    }
}

/// Returns `true` for a valid name of a figure: letters, digits, `_`, `.` and `:`, a letter or `_` first, no
/// `.` or `:` last, at most 64 bytes.
pub fn is_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:".contains(&byte);
    text.len() <= MAX_NAME_LENGTH
        && text.as_bytes().first().is_some_and(|first| first.is_ascii_alphabetic() || *first == b'_')
        && text.bytes().all(is_allowed)
        && !text.ends_with(['.', ':'])
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Expression({:?})", self.text)
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl fmt::Display for ExpressionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

/// The constants of the language, which look like names.
const CONSTANTS: &[&str] = &["true", "false", "none", "True", "False", "None"];

/// The evaluation environment, shared by all expressions.
static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(MAX_STEPS));
    // Functions that create lists do not belong in a formula.
    for name in ["range", "dict", "debug", "namespace"] {
        environment.remove_global(name);
    }
    environment
});

/// Converts an error of the library.
fn convert_error(text: &str, error: &minijinja::Error) -> ExpressionError {
    let whole_text = 0..text.len();
    let span = error
        .range()
        .filter(|range| range.start < range.end && range.end <= text.len())
        .unwrap_or(whole_text);
    ExpressionError { span, why: error_line(error) }
}

/// Formats an error as one line.
fn error_line(error: &minijinja::Error) -> String {
    let message = match (error.kind(), error.detail()) {
        (ErrorKind::SyntaxError | ErrorKind::UnknownFilter | ErrorKind::UnknownTest, Some(detail)) => {
            detail.to_owned()
        }
        (_, Some(detail)) if detail.ends_with("is not callable") => {
            "there are no functions, only filters such as [a, b]|max".into()
        }
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    };
    message.replace(['\n', '\r'], " ")
}

/// Returns the names of the figures in several expressions, sorted.
pub(crate) fn names_of<'a>(expressions: impl Iterator<Item = &'a Expression>) -> BTreeSet<String> {
    expressions.flat_map(|expression| expression.names.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> Result<f64, String> {
        let lookup = |name: &str| match name {
            "cpu" => Some(0.5),
            "in_flight" => Some(20.0),
            "capacity" => Some(3.0),
            "zero" => Some(0.0),
            "utilization.queue" => Some(0.75),
            _ => None,
        };
        Expression::new(text).map_err(|error| format!("{error}"))?.eval(lookup)
    }

    #[test]
    fn sums_mix_whole_and_decimal_numbers() {
        for (text, expected) in [
            ("cpu", 0.5),
            ("cpu * 0.7 + in_flight / 100", 0.55),
            ("capacity / (1 + cpu)", 2.0),
            ("7 / 2", 3.5),
            ("2 ** 10", 1024.0),
            ("1 if cpu < 0.8 else 0.1", 1.0),
            ("[cpu, in_flight / 100]|max", 0.5),
            ("memory|default(0.25)", 0.25),
            ("memory if memory is defined else in_flight", 20.0),
            ("42", 42.0),
            ("utilization.queue", 0.75),
            ("utilization.queue * 2 + cpu", 2.0),
            ("utilization.disk|default(0.125)", 0.125),
            ("[utilization.queue, named_metrics.x|default(9)]|max", 9.0),
        ] {
            let found = value(text).unwrap_or_else(|why| panic!("{text}: {why}"));
            assert!((found - expected).abs() < 1e-12, "{text}: {found}");
        }
    }

    #[test]
    fn what_is_read_is_known() {
        let names = |text: &str| Expression::new(text).unwrap().names().to_vec();
        assert_eq!(names("cpu * 0.7 + in_flight / cpu"), ["cpu", "in_flight"]);
        assert_eq!(names("node:load.1"), ["node:load.1"]);
        assert_eq!(names("[a, b]|max"), ["a", "b"]);
        assert!(names("1 + 1").is_empty());
    }

    #[test]
    fn faults_have_a_place() {
        for (text, span, why) in [
            ("", 0..0, "is empty"),
            ("cpu *", 4..5, ""),
            ("cpu * * 2", 6..7, "unexpected"),
            ("cpu|maximum", 4..11, "filter maximum is unknown"),
            ("log2(cpu)", 0..4, "there are no functions"),
            ("\"abc\"", 0..5, "not a number"),
            ("[cpu]", 0..5, "not a number"),
            ("cpu > 0.4", 0..9, "not a number"),
            ("range(9)|sum", 0..5, "there are no functions"),
        ] {
            let error = Expression::new(text).expect_err(text);
            assert!(error.why.contains(why), "{text}: {}", error.why);
            assert!(error.span.start.abs_diff(span.start) <= 1, "{text}: {:?}: {}", error.span, error.why);
        }
        assert!(Expression::new(&"1+".repeat(1000)).unwrap_err().why.contains("longer than"));
    }

    #[test]
    fn values_that_are_none_say_why() {
        assert_eq!(value("disk").unwrap_err(), "`disk` is not known");
        assert_eq!(value("1 + utilization.disk").unwrap_err(), "`utilization.disk` is not known");
        assert_eq!(value("cpu + disk * net").unwrap_err(), "`disk`, `net` is not known");
        assert!(value("cpu / zero").unwrap_err().contains('/'), "{:?}", value("cpu / zero"));
        assert!(value("10 ** 300 * 10.0 ** 300").is_err());
    }

    #[test]
    fn names_are_plain() {
        for valid in ["cpu", "_a", "a.b:c9", &"x".repeat(64)] {
            assert!(is_name(valid), "{valid}");
        }
        for invalid in ["", "9a", "a b", "a-b", "a.", "ä", "a\n", &"x".repeat(65)] {
            assert!(!is_name(invalid), "{invalid}");
        }
    }

    #[test]
    fn an_evaluation_is_bounded() {
        let nested = format!("{}cpu{}", "(".repeat(400), ")".repeat(400));
        // Both results are acceptable; a stack overflow is not.
        let _ = Expression::new(&nested).map(|expression| expression.eval(|_| Some(1.0)));
        assert!(value("(\"x\" * 1000000)|length * (\"y\" * 1000000)|length").is_ok_and(f64::is_finite));
    }
}
