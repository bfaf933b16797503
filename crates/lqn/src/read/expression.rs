//! SPEX expressions, the values of parameters.

use super::tokenizer::{Token, TokenKind};
use super::{InputError, ParameterScope, SourcePosition};

/// A parser and evaluator of expressions, given as tokens.
pub(super) struct ExpressionParser<'t, 's, 'g> {
    pub(super) tokens: &'t [Token],
    pub(super) next: usize,
    pub(super) scope: &'s ParameterScope<'g>,
}

/// The deepest nesting of brackets and operators.
const MAX_DEPTH: usize = 64;

/// The precedence level of `**`.
const POWER_LEVEL: usize = 5;

impl ExpressionParser<'_, '_, '_> {
    fn token(&self) -> &Token {
        &self.tokens[self.next.min(self.tokens.len() - 1)]
    }

    fn position(&self) -> SourcePosition {
        self.token().at
    }

    fn accept(&mut self, symbol: &str) -> bool {
        let is_next =
            matches!(self.token().kind, TokenKind::Punctuation(punctuation) if punctuation == symbol);
        self.next += usize::from(is_next);
        is_next
    }

    /// Parses one value or several: `[a, b, c]`, or `[from : to, step]`.
    pub(super) fn values(&mut self) -> Result<Vec<f64>, InputError> {
        if !self.accept("[") {
            return Ok(vec![self.value(0)?]);
        }
        let mut values = vec![self.value(0)?];
        if self.accept(":") {
            let position = self.position();
            let to = self.value(0)?;
            let step = if self.accept(",") { self.value(0)? } else { 1.0 };
            let count = ((to - values[0]) / step + 1e-9).floor();
            if !(step != 0.0 && (0.0..=10_000.0).contains(&count)) {
                return Err(
                    position.error("a range has an end that its step leads to, in at most 10000 steps")
                );
            }
            let start = values[0];
            values = (0..=count as usize).map(|step_index| start + step * step_index as f64).collect();
        }
        while self.accept(",") {
            values.push(self.value(0)?);
        }
        let position = self.position();
        if self.accept("]") { Ok(values) } else { Err(position.error("`]` is missing")) }
    }

    /// Parses one value.
    fn value(&mut self, depth: usize) -> Result<f64, InputError> {
        let condition = self.binary(0, depth)?;
        if !self.accept("?") {
            return Ok(condition);
        }
        let value_if_true = self.value(depth + 1)?;
        let position = self.position();
        if !self.accept(":") {
            return Err(position.error("`:` is missing: `condition ? this : that`"));
        }
        let value_if_false = self.value(depth + 1)?;
        Ok(if condition == 0.0 { value_if_false } else { value_if_true })
    }

    /// Parses operators of at least this precedence level.
    fn binary(&mut self, level: usize, depth: usize) -> Result<f64, InputError> {
        const LEVELS: [&[&str]; 6] =
            [&["|"], &["&"], &["==", "!=", "<=", ">=", "<", ">"], &["+", "-"], &["*", "/", "%"], &["**"]];
        if depth > MAX_DEPTH {
            return Err(self.position().error("this is nested too deeply"));
        }
        let Some(operators) = LEVELS.get(level) else { return self.unary(depth) };
        let mut left = self.binary(level + 1, depth)?;
        loop {
            // In `a -1`, the scanner has taken the sign as part of the number.
            if level == 3
                && matches!(self.token().kind, TokenKind::Number(value, _) if value.is_sign_negative())
            {
                left += self.binary(level + 1, depth)?;
                continue;
            }
            let Some(operator) = operators.iter().find(|symbol| self.accept(symbol)) else { return Ok(left) };
            let right = self.binary(if level == POWER_LEVEL { level } else { level + 1 }, depth + 1)?;
            let to_number = |holds: bool| if holds { 1.0 } else { 0.0 };
            left = match *operator {
                "|" => to_number(left != 0.0 || right != 0.0),
                "&" => to_number(left != 0.0 && right != 0.0),
                "==" => to_number(left == right),
                "!=" => to_number(left != right),
                "<=" => to_number(left <= right),
                ">=" => to_number(left >= right),
                "<" => to_number(left < right),
                ">" => to_number(left > right),
                "+" => left + right,
                "-" => left - right,
                "*" => left * right,
                "/" => left / right,
                "%" => left % right,
                _ => left.powf(right),
            };
        }
    }

    fn unary(&mut self, depth: usize) -> Result<f64, InputError> {
        if depth > MAX_DEPTH {
            return Err(self.position().error("this is nested too deeply"));
        }
        // A power binds more tightly than a sign.
        if self.accept("-") {
            return Ok(-self.binary(POWER_LEVEL, depth + 1)?);
        }
        if self.accept("!") {
            return Ok(if self.unary(depth + 1)? == 0.0 { 1.0 } else { 0.0 });
        }
        if self.accept("(") {
            let value = self.value(depth + 1)?;
            let position = self.position();
            return if self.accept(")") { Ok(value) } else { Err(position.error("`)` is missing")) };
        }
        let Token { kind, at: position } = self.token().clone();
        self.next += 1;
        match kind {
            TokenKind::Number(value, _) if value.is_sign_negative() && self.accept("**") => {
                Ok(-(-value).powf(self.binary(POWER_LEVEL, depth + 1)?))
            }
            TokenKind::Number(value, _) => Ok(value),
            TokenKind::Variable(name) => self.scope.value(&name, position),
            TokenKind::Word(name) => self.function(&name, position, depth),
            _ => {
                self.next -= 1;
                Err(position.error("expected a number, a parameter such as `$x`, or `(`"))
            }
        }
    }

    fn function(&mut self, name: &str, position: SourcePosition, depth: usize) -> Result<f64, InputError> {
        let function = FUNCTIONS.into_iter().find(|(candidate, _)| *candidate == name);
        let Some((_, function)) = function else {
            let names = FUNCTIONS.map(|(name, _)| name).join(", ");
            return Err(position.error(format!("no function `{name}`; there are {names}")));
        };
        if !self.accept("(") {
            return Err(self.position().error(format!("`(` is missing after `{name}`")));
        }
        let mut values = vec![self.value(depth + 1)?];
        while self.accept(",") {
            values.push(self.value(depth + 1)?);
        }
        let end = self.position();
        if !self.accept(")") {
            return Err(end.error("`)` is missing"));
        }
        let count = match function {
            MathFunction::Unary(_) => "one value",
            MathFunction::Binary(_) => "two values",
            MathFunction::Variadic(_) => "",
        };
        match (function, values.as_slice()) {
            (MathFunction::Unary(apply), [value]) => Ok(apply(*value)),
            (MathFunction::Binary(apply), [first, second]) => Ok(apply(*first, *second)),
            (MathFunction::Variadic(combine), values) => {
                Ok(values.iter().copied().reduce(combine).unwrap_or_default())
            }
            _ => Err(position.error(format!("`{name}` is of {count}"))),
        }
    }
}

/// A function, by its number of arguments.
#[derive(Clone, Copy)]
enum MathFunction {
    Unary(fn(f64) -> f64),
    Binary(fn(f64, f64) -> f64),
    /// Any number of arguments, folded in pairs.
    Variadic(fn(f64, f64) -> f64),
}

/// The functions of SPEX, and the others of a calculator. Angles are in radians.
const FUNCTIONS: [(&str, MathFunction); 19] = [
    ("abs", MathFunction::Unary(f64::abs)),
    ("ceil", MathFunction::Unary(f64::ceil)),
    ("floor", MathFunction::Unary(f64::floor)),
    ("round", MathFunction::Unary(f64::round)),
    ("exp", MathFunction::Unary(f64::exp)),
    ("log", MathFunction::Unary(f64::ln)),
    ("log10", MathFunction::Unary(f64::log10)),
    ("sqrt", MathFunction::Unary(f64::sqrt)),
    ("sin", MathFunction::Unary(f64::sin)),
    ("cos", MathFunction::Unary(f64::cos)),
    ("tan", MathFunction::Unary(f64::tan)),
    ("asin", MathFunction::Unary(f64::asin)),
    ("acos", MathFunction::Unary(f64::acos)),
    ("atan", MathFunction::Unary(f64::atan)),
    ("atan2", MathFunction::Binary(f64::atan2)),
    ("pow", MathFunction::Binary(f64::powf)),
    ("fmod", MathFunction::Binary(|dividend, divisor| dividend % divisor)),
    ("min", MathFunction::Variadic(f64::min)),
    ("max", MathFunction::Variadic(f64::max)),
];

#[cfg(test)]
mod tests {
    use super::super::tokenizer::tokenize;
    use super::*;

    fn values(text: &str) -> Result<Vec<f64>, InputError> {
        let tokens = tokenize(text)?;
        let mut scope = ParameterScope::default();
        scope.declare("x", vec![3.0]);
        ExpressionParser { tokens: &tokens, next: 0, scope: &scope }.values()
    }

    #[test]
    fn operators_bind_as_in_school() {
        for (text, value) in [
            ("1 + 2 * 3", 7.0),
            ("(1 + 2) * 3", 9.0),
            ("2 ** 3 ** 2", 512.0),
            ("-$x + 5", 2.0),
            ("$x -1", 2.0),
            ("5 -2**2", 1.0),
            ("5-2**2*3", -7.0),
            ("-2 ** 2", -4.0),
            ("-$x ** 2", -9.0),
            ("2 ** -1", 0.5),
            ("2 ** -$x * 8", 1.0),
            ("10 - 4 - 3", 3.0),
            ("$x > 2 & $x < 4 ? 7 : 8", 7.0),
            ("sqrt(16) / 2", 2.0),
            ("!0", 1.0),
            ("pow(2, 3) + min(4, $x, 7)", 11.0),
            ("max(1) + max($x, 2)", 4.0),
            ("cos(0) + sin(0) + atan2(0, 1)", 1.0),
        ] {
            assert_eq!(values(text).unwrap(), [value], "{text}");
        }
        assert_eq!(values("[1, 2, $x * 2]").unwrap(), [1.0, 2.0, 6.0]);
        assert_eq!(values("[1 : 2, 0.25]").unwrap(), [1.0, 1.25, 1.5, 1.75, 2.0]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, expected) in [
            ("$y", "`$y` has no value"),
            ("1 +", "expected a number"),
            ("(1", "`)` is missing"),
            ("rand(1)", "no function `rand`"),
            ("pow(2)", "`pow` is of two values"),
            ("sqrt(2, 3)", "`sqrt` is of one value"),
            ("min()", "expected a number"),
            ("[1 : 2, 0]", "a range"),
        ] {
            let error = values(text).unwrap_err();
            assert!(error.message.contains(expected), "{text}: {error}");
        }
        let deep = "(".repeat(100_000);
        assert!(values(&deep).unwrap_err().message.contains("too deeply"));
    }
}
