package payload

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// Generated Validate methods consist of the checks below. A check returns nil for a valid value, without allocating,
// and else what is wrong. It never puts the value into a message.

// Text checks that jsonb can store v as a string: it is valid UTF-8 without NUL.
func Text(field, v string) FieldErrors {
	if !utf8.ValidString(v) {
		return broken(field, "utf8", "is not valid UTF-8")
	}
	if strings.IndexByte(v, 0) >= 0 {
		return broken(field, "utf8", "has a NUL byte")
	}
	return nil
}

// MinLen checks that v has at least n characters (runes).
func MinLen(field, v string, n int) FieldErrors {
	if got := utf8.RuneCountInString(v); got < n {
		return broken(field, "min_len", fmt.Sprintf("has %s, at least %d needed", count(got, "character"), n))
	}
	return nil
}

// MaxLen checks that v has at most n characters (runes).
func MaxLen(field, v string, n int) FieldErrors {
	if len(v) <= n { // no string has more runes than bytes
		return nil
	}
	if got := utf8.RuneCountInString(v); got > n {
		return broken(field, "max_len", fmt.Sprintf("has %s, at most %d allowed", count(got, "character"), n))
	}
	return nil
}

// Match checks that re matches somewhere in v. Anchor a pattern to match all of v.
func Match(field, v string, re *regexp.Regexp) FieldErrors {
	if re.MatchString(v) {
		return nil
	}
	return broken(field, "pattern", "does not match "+re.String())
}

// Min checks that v is at least bound.
func Min[N cmp.Ordered](field string, v, bound N) FieldErrors {
	if v < bound {
		return broken(field, "min", fmt.Sprintf("is below %v", bound))
	}
	return nil
}

// Max checks that v is at most bound.
func Max[N cmp.Ordered](field string, v, bound N) FieldErrors {
	if v > bound {
		return broken(field, "max", fmt.Sprintf("is above %v", bound))
	}
	return nil
}

// Finite checks that JSON can write v: it is neither NaN nor infinite.
func Finite(field string, v float64) FieldErrors {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return broken(field, "float64", "is not a finite number")
	}
	return nil
}

// RequiredUUID checks that v, a required field, is set: it is not the zero UUID.
func RequiredUUID[U ~[16]byte](field string, v U) FieldErrors {
	if v == (U{}) {
		return broken(field, "required", "is not set")
	}
	return nil
}

// RequiredTime checks that v, a required field, is set: it is not the zero time.
func RequiredTime(field string, v time.Time) FieldErrors {
	if v.IsZero() {
		return broken(field, "required", "is not set")
	}
	return nil
}

// Instant checks that RFC 3339 can write v without loss: its year is from 0 to 9999, and its UTC offset is in whole
// minutes and less than a day.
func Instant(field string, v time.Time) FieldErrors {
	if y := v.Year(); y < 0 || y > 9999 {
		return broken(field, "timestamp", "is outside the years 0 to 9999")
	}
	if _, offset := v.Zone(); offset%60 != 0 || offset <= -86400 || offset >= 86400 {
		return broken(field, "timestamp", "has a UTC offset that RFC 3339 cannot write")
	}
	return nil
}

// JSON checks that v is one valid JSON value. Enqueue checks whether jsonb can store it.
func JSON(field string, v json.RawMessage) FieldErrors {
	if json.Valid(v) {
		return nil
	}
	return broken(field, "json", "is not valid JSON")
}

// MinBytes checks the length of a field of type bytes.
func MinBytes(field string, got, n int) FieldErrors { return atLeast(field, "byte", got, n) }

// MaxBytes checks the length of a field of type bytes.
func MaxBytes(field string, got, n int) FieldErrors { return atMost(field, "byte", got, n) }

// MinItems checks the number of items in a list or of entries in a map.
func MinItems(field string, got, n int) FieldErrors { return atLeast(field, "item", got, n) }

// MaxItems checks the number of items in a list or of entries in a map.
func MaxItems(field string, got, n int) FieldErrors { return atMost(field, "item", got, n) }

func atLeast(field, unit string, got, n int) FieldErrors {
	if got < n {
		return broken(field, "min_len", fmt.Sprintf("has %s, at least %d needed", count(got, unit), n))
	}
	return nil
}

func atMost(field, unit string, got, n int) FieldErrors {
	if got > n {
		return broken(field, "max_len", fmt.Sprintf("has %s, at most %d allowed", count(got, unit), n))
	}
	return nil
}

func count(n int, unit string) string {
	if n == 1 {
		return "1 " + unit
	}
	return fmt.Sprintf("%d %ss", n, unit)
}
