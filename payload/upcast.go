package payload

import "reflect"

// Upcaster is the step from one version of a payload to the next. Generated code makes one for each older version of a
// topic that the lock holds. It may be used concurrently if its function may. The zero value is not a step.
type Upcaster struct {
	version int
	from    reflect.Type
	sealed  bool
	step    func(old any) (any, error)
}

// Upcast returns the step from version, whose payload is of type Old, to the next version, whose payload is of type
// New. The function must not be nil, and must depend only on its argument.
func Upcast[Old, New any](version int, step func(Old) (New, error)) Upcaster {
	return Upcaster{version: version, from: reflect.TypeFor[Old](), step: func(old any) (any, error) {
		made := new(New)
		var err error
		*made, err = step(*old.(*Old))
		return made, err
	}}
}

// Sealed returns u for payloads that are sealed as a whole in the version that it starts from.
func (u Upcaster) Sealed() Upcaster {
	u.sealed = true
	return u
}

// IsSealed reports whether payloads of the version that u starts from are sealed as a whole.
func (u Upcaster) IsSealed() bool { return u.sealed }

// Version returns the version that u starts from.
func (u Upcaster) Version() int { return u.version }

// From returns the type of the payload that u starts from.
func (u Upcaster) From() reflect.Type { return u.from }

// Step calls the function with the payload that old points to, and returns a pointer to the payload that it makes.
func (u Upcaster) Step(old any) (any, error) { return u.step(old) }
