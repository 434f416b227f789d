package payload

import (
	"cmp"
	"fmt"
	"slices"
)

// maxBadItems bounds what one list or map adds to a ValidationError: a list of a million bad items is
// one mistake, not a million.
const maxBadItems = 8

// Optional checks the value behind v, if there is one.
func Optional[T any](field string, v *T, check func(field string, v T) FieldErrors) FieldErrors {
	if v == nil {
		return nil
	}
	return check(field, *v)
}

// All joins several checks of one value.
func All(found ...FieldErrors) FieldErrors {
	var all FieldErrors
	for _, errs := range found {
		all = append(all, errs...)
	}
	return all
}

// IfAny returns found unless an optional field with n bytes, items or entries is absent, which is the
// same as empty.
func IfAny(n int, found FieldErrors) FieldErrors {
	if n == 0 {
		return nil
	}
	return found
}

// Each checks the items of a list, and reports those at fault as field[index], the first eight of them.
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

// EachValue checks the keys and values of a map: keys as Text, values by check. A broken rule is reported
// once, as field[*], since a key may be as sensitive as a value.
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

// appendNew keeps one error for each place and rule, whatever the order in which a map yields them:
// messages that differ only in a length count as one, the smallest of them.
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

// EachIn turns a check of an item into one of a list of such items, for lists inside lists and maps.
func EachIn[T any](check func(field string, v T) FieldErrors) func(field string, items []T) FieldErrors {
	return func(field string, items []T) FieldErrors { return Each(field, items, check) }
}

// EachValueIn turns a check of a value into one of a map of such values, for maps inside lists and maps.
func EachValueIn[T any](check func(field string, v T) FieldErrors) func(field string, entries map[string]T) FieldErrors {
	return func(field string, entries map[string]T) FieldErrors { return EachValue(field, entries, check) }
}

// AnyValue accepts every value; EachValue with it checks the keys of a map alone.
func AnyValue[T any](string, T) FieldErrors { return nil }
