package payload

import (
	"errors"
	"slices"
	"strconv"
	"strings"
)

// ValidationError lists every field of a payload, or of a shared type, that breaks a rule of the YAML. It wraps
// ErrInvalid. It never carries a value, because values may be sensitive.
type ValidationError struct {
	Topic  string       // "mini_chat/turn_finalized", or the name of a shared type that was validated alone
	Fields []FieldError // in the order of the fields
}

// Error names each bad field and the rule it breaks, in one line.
func (e *ValidationError) Error() string {
	var b strings.Builder
	b.WriteString("validate ")
	b.WriteString(e.Topic)
	for i, f := range e.Fields {
		if i == 0 {
			b.WriteString(": ")
		} else {
			b.WriteString("; ")
		}
		b.WriteString(f.Error())
	}
	return b.String()
}

// Unwrap returns ErrInvalid.
func (e *ValidationError) Unwrap() error { return ErrInvalid }

// FieldError is one broken rule.
type FieldError struct {
	Field   string // path by YAML names: "usage.input_tokens", "tags[2]", "labels[*]"; "" means the value itself
	Rule    string // the YAML attribute ("min", "max_len", "pattern"), or the type ("date")
	Message string // continues a sentence that begins with the field: "is below 0"
}

// Error returns the field and the message.
func (e FieldError) Error() string {
	if e.Field == "" {
		return "the value " + e.Message
	}
	return e.Field + " " + e.Message
}

// FieldErrors are the broken rules that one check found; nil means that the value is valid.
type FieldErrors []FieldError

// Check joins the results of the checks of one payload or shared type. It returns nil if they found nothing, and a
// *ValidationError otherwise.
func Check(subject string, found ...FieldErrors) error {
	n := 0
	for _, errs := range found {
		n += len(errs)
	}
	if n == 0 {
		return nil
	}
	fields := make([]FieldError, 0, n)
	for _, errs := range found {
		fields = append(fields, errs...)
	}
	return &ValidationError{Topic: subject, Fields: fields}
}

// Enum returns nil if v is one of allowed. Otherwise it returns a *ValidationError that names the type and the allowed
// values.
func Enum[S ~string](name string, v S, allowed ...S) error {
	if slices.Contains(allowed, v) {
		return nil
	}
	var b strings.Builder
	b.WriteString("is not one of ")
	for i, a := range allowed {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(showValue(string(a)))
	}
	return Check(name, FieldErrors{{Rule: "enum", Message: b.String()}})
}

// ParseEnum returns text as an S if it is one of allowed. Otherwise it returns "" and the error of Enum.
func ParseEnum[S ~string](name, text string, allowed ...S) (S, error) {
	if err := Enum(name, S(text), allowed...); err != nil {
		return "", err
	}
	return S(text), nil
}

// showValue returns a value of an enum for a list of values: in quotes if it is not a single word.
func showValue(v string) string {
	if v == "" || strings.ContainsAny(v, " ,\"\\") {
		return strconv.Quote(v)
	}
	return v
}

// Validator is a value with a Validate method: a shared struct, an enum or a Date.
type Validator interface {
	Validate() error
}

// Valid checks a value with its Validate method and reports the broken rules under field. It is not inlined, because each
// Validate of a generated package would have a copy.
//
//go:noinline
func Valid[V Validator](field string, v V) FieldErrors {
	err := v.Validate()
	if err == nil {
		return nil
	}
	var invalid *ValidationError
	if errors.As(err, &invalid) {
		return under(field, invalid.Fields)
	}
	return broken(field, "type", "is invalid")
}

func broken(field, rule, message string) FieldErrors {
	return FieldErrors{{Field: field, Rule: rule, Message: message}}
}

// under puts path in front of the fields of errors that were found inside a value.
func under(path string, inner []FieldError) FieldErrors {
	errs := make(FieldErrors, len(inner))
	for i, e := range inner {
		switch {
		case e.Field == "":
			e.Field = path
		case e.Field[0] == '[' || path == "":
			e.Field = path + e.Field
		default:
			e.Field = path + "." + e.Field
		}
		errs[i] = e
	}
	return errs
}
