// Package errtext words errors for places that have one line for a text: a line of the log, a column, a terminal.
package errtext

import (
	"slices"
	"strings"
)

// Join is errors.Join with "; " between the texts instead of a line break. A single error is returned as it is. The
// methods of errs, which may be the user's code, are called only by those of the result.
func Join(errs ...error) error {
	errs = slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
	switch len(errs) {
	case 0:
		return nil
	case 1:
		return errs[0]
	}
	return &joined{errs}
}

// joined is several errors as one.
type joined struct{ errs []error }

func (e *joined) Error() string {
	texts := make([]string, len(e.errs))
	for i, err := range e.errs {
		texts[i] = err.Error()
	}
	return strings.Join(texts, "; ")
}

func (e *joined) Unwrap() []error { return e.errs }

// Without returns err without what its text begins with, for a caller that says the same in front of it. Any other err
// is returned as it is.
func Without(begin string, err error) error {
	if err == nil {
		return nil
	}
	if text, ok := strings.CutPrefix(err.Error(), begin); ok {
		return &reworded{text, err}
	}
	return err
}

// reworded is an error with another text.
type reworded struct {
	text string
	err  error
}

func (e *reworded) Error() string { return e.text }
func (e *reworded) Unwrap() error { return e.err }
