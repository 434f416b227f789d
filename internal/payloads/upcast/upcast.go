// Package upcast brings payloads of older versions to the present one.
package upcast

import (
	"fmt"
	"reflect"

	"github.com/outboxgen/outboxgen/internal/call/errclass"
	"github.com/outboxgen/outboxgen/payload"
)

// Chain is the history of a topic, oldest version first, without a gap.
type Chain []payload.Upcaster

// From returns the steps that a payload of version needs, none if version is the present one. A payload that is older
// than the chain has the type with which the chain begins: the code of that time decoded it so.
func (c Chain) From(version int) Chain {
	for i, u := range c {
		if version <= u.Version() {
			return c[i:]
		}
	}
	return nil
}

// Type returns the type of a payload with which c begins.
func (c Chain) Type() reflect.Type { return c[0].From() }

// Run returns a pointer to the present payload, of type to, made of the payload that p points to. An error is
// permanent, unless the step that returns it has marked it otherwise.
func (c Chain) Run(p any, to reflect.Type) (any, error) {
	for _, u := range c {
		if err := fits(p, u.From()); err != nil {
			return nil, err
		}
		made, err := u.Step(p)
		if err != nil {
			err = fmt.Errorf("upcast payload from version %d: %w", u.Version(), err)
			if !errclass.Marked(err) {
				err = errclass.Permanent(err)
			}
			return nil, err
		}
		p = made
	}
	return p, fits(p, to)
}

// fits reports a history, written by hand, whose steps do not meet. Generated code does not compile then.
func fits(p any, want reflect.Type) error {
	if have := reflect.TypeOf(p).Elem(); have != want {
		return fmt.Errorf("upcast payload: the history of the topic has a step to %s where %s must follow", have, want)
	}
	return nil
}
