package outbox

import (
	"cmp"
	"encoding/json"
	"io"
	"regexp"
	"time"

	"github.com/outboxgen/outboxgen/payload"
)

// What payloads are made of lives in package payload, which consumers share. The producer side has it under these
// names.

// Date is a day of the calendar without a time zone, for payload fields of type date: see payload.Date.
type Date = payload.Date

// ValidationError lists every field of a payload that breaks a rule, and no value: see payload.ValidationError.
type ValidationError = payload.ValidationError

// FieldError is one broken rule: see payload.FieldError.
type FieldError = payload.FieldError

// FieldErrors is what one check found, nil when the value is fine.
type FieldErrors = payload.FieldErrors

// Validator is a value that knows its rules: a shared struct, an enum or a Date.
type Validator = payload.Validator

// DateOf returns the day of t in the location of t.
func DateOf(t time.Time) Date { return payload.DateOf(t) }

// ParseDate reads "2006-01-02", as payload.ParseDate does.
func ParseDate(s string) (Date, error) { return payload.ParseDate(s) }

// Check is payload.Check.
func Check(subject string, found ...FieldErrors) error { return payload.Check(subject, found...) }

// Enum is payload.Enum.
func Enum[S ~string](name string, v S, allowed ...S) error { return payload.Enum(name, v, allowed...) }

// ParseEnum is payload.ParseEnum.
func ParseEnum[S ~string](name, text string, allowed ...S) (S, error) {
	return payload.ParseEnum(name, text, allowed...)
}

// Valid is payload.Valid.
func Valid[V Validator](field string, v V) FieldErrors { return payload.Valid(field, v) }

// Text is payload.Text.
func Text(field, v string) FieldErrors { return payload.Text(field, v) }

// MinLen is payload.MinLen.
func MinLen(field, v string, n int) FieldErrors { return payload.MinLen(field, v, n) }

// MaxLen is payload.MaxLen.
func MaxLen(field, v string, n int) FieldErrors { return payload.MaxLen(field, v, n) }

// Match is payload.Match.
func Match(field, v string, re *regexp.Regexp) FieldErrors { return payload.Match(field, v, re) }

// Min is payload.Min.
func Min[N cmp.Ordered](field string, v, bound N) FieldErrors { return payload.Min(field, v, bound) }

// Max is payload.Max.
func Max[N cmp.Ordered](field string, v, bound N) FieldErrors { return payload.Max(field, v, bound) }

// Finite is payload.Finite.
func Finite(field string, v float64) FieldErrors { return payload.Finite(field, v) }

// RequiredUUID is payload.RequiredUUID.
func RequiredUUID[U ~[16]byte](field string, v U) FieldErrors { return payload.RequiredUUID(field, v) }

// RequiredTime is payload.RequiredTime.
func RequiredTime(field string, v time.Time) FieldErrors { return payload.RequiredTime(field, v) }

// Instant is payload.Instant.
func Instant(field string, v time.Time) FieldErrors { return payload.Instant(field, v) }

// JSON is payload.JSON.
func JSON(field string, v json.RawMessage) FieldErrors { return payload.JSON(field, v) }

// MinBytes is payload.MinBytes.
func MinBytes(field string, got, n int) FieldErrors { return payload.MinBytes(field, got, n) }

// MaxBytes is payload.MaxBytes.
func MaxBytes(field string, got, n int) FieldErrors { return payload.MaxBytes(field, got, n) }

// MinItems is payload.MinItems.
func MinItems(field string, got, n int) FieldErrors { return payload.MinItems(field, got, n) }

// MaxItems is payload.MaxItems.
func MaxItems(field string, got, n int) FieldErrors { return payload.MaxItems(field, got, n) }

// Optional is payload.Optional.
func Optional[T any](field string, v *T, check func(field string, v T) FieldErrors) FieldErrors {
	return payload.Optional(field, v, check)
}

// All is payload.All.
func All(found ...FieldErrors) FieldErrors { return payload.All(found...) }

// IfAny is payload.IfAny.
func IfAny(n int, found FieldErrors) FieldErrors { return payload.IfAny(n, found) }

// Each is payload.Each.
func Each[T any](field string, items []T, check func(field string, v T) FieldErrors) FieldErrors {
	return payload.Each(field, items, check)
}

// EachValue is payload.EachValue.
func EachValue[T any](field string, entries map[string]T, check func(field string, v T) FieldErrors) FieldErrors {
	return payload.EachValue(field, entries, check)
}

// EachIn is payload.EachIn.
func EachIn[T any](check func(field string, v T) FieldErrors) func(field string, items []T) FieldErrors {
	return payload.EachIn(check)
}

// EachValueIn is payload.EachValueIn.
func EachValueIn[T any](check func(field string, v T) FieldErrors) func(field string, entries map[string]T) FieldErrors {
	return payload.EachValueIn(check)
}

// AnyValue is payload.AnyValue.
func AnyValue[T any](field string, v T) FieldErrors { return payload.AnyValue(field, v) }

// FormatMasked is payload.FormatMasked.
func FormatMasked(w io.Writer, v any, sensitive ...string) { payload.FormatMasked(w, v, sensitive...) }
