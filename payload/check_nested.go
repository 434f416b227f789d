package payload

import (
	"cmp"
	"fmt"
	"slices"
)

// maxBadItems limits what one list or map adds to a ValidationError: a million bad items in a list are one mistake.
const maxBadItems = 8

// Optional checks the value that v points to. A nil v is valid.
func Optional[T any](field string, v *T, check func(field string, v T) FieldErrors) FieldErrors {
	if v == nil {
		return nil
	}
	return check(field, *v)
}

// All joins the results of several checks.
func All(found ...FieldErrors) FieldErrors {
	var all FieldErrors
	for _, errs := range found {
		all = append(all, errs...)
	}
	return all
}

// IfAny returns found if n, the number of bytes, items or entries of an optional field, is above 0. An empty optional
// field counts as absent, which is valid.
func IfAny(n int, found FieldErrors) FieldErrors {
	if n == 0 {
		return nil
	}
	return found
}

// Each checks the items of a list. It reports the first eight bad ones, as field[index].
func Each[T any](field string, items []T, check func(field string, v T) FieldErrors) FieldErrors {
	var all FieldErrors
	bad := 0
	for i := range items {
		errs := check("", items[i])
		if len(errs) == 0 {
			continue
		}
		all = append(all, under(fmt.Sprintf("%s[%d]", field, i), errs)...)
		if bad++; bad == maxBadItems {
			break
		}
	}
	return all
}

// EachValue checks the keys of a map with Text and its values with check. It reports a broken rule once, as field[*],
// because a key may be as sensitive as a value.
func EachValue[T any](field string, entries map[string]T, check func(field string, v T) FieldErrors) FieldErrors {
	var all FieldErrors
	for key, v := range entries {
		all = appendNew(all, Text("key", key))
		if check != nil {
			all = appendNew(all, check("", v))
		}
	}
	if all == nil {
		return nil
	}
	slices.SortFunc(all, func(a, b FieldError) int {
		return cmp.Or(cmp.Compare(a.Field, b.Field), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Message, b.Message))
	})
	return under(field+"[*]", all)
}

// appendNew keeps one error per place and rule. Of messages that differ only in a length it keeps the smallest, so that
// the result does not depend on the order of a map.
func appendNew(all, errs FieldErrors) FieldErrors {
	for _, e := range errs {
		i := slices.IndexFunc(all, func(have FieldError) bool { return have.Field == e.Field && have.Rule == e.Rule })
		switch {
		case i >= 0:
			all[i].Message = min(all[i].Message, e.Message)
		case len(all) < maxBadItems:
			all = append(all, e)
		}
	}
	return all
}

// EachIn makes a check of a list from a check of its items, for lists inside lists and maps.
func EachIn[T any](check func(field string, v T) FieldErrors) func(field string, items []T) FieldErrors {
	return func(field string, items []T) FieldErrors { return Each(field, items, check) }
}

// EachValueIn makes a check of a map from a check of its values, for maps inside lists and maps.
func EachValueIn[T any](
	check func(field string, v T) FieldErrors,
) func(field string, entries map[string]T) FieldErrors {
	return func(field string, entries map[string]T) FieldErrors { return EachValue(field, entries, check) }
}

// AnyValue accepts every value. EachValue with AnyValue checks only the keys of a map.
func AnyValue[T any](string, T) FieldErrors { return nil }
