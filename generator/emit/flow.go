package emit

import (
	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

// limits writes the limits of a topic, with a line per limit if there are several.
func limits(list []model.Limit) *jen.Statement {
	items := make([]jen.Code, len(list))
	for i, l := range list {
		items[i] = limit(l)
	}
	return jen.Index().Qual(outboxPath, "Limit").Custom(
		jen.Options{Open: "{", Close: "}", Separator: ",", Multi: len(items) > 1}, items...,
	)
}

// limit writes a limit on one line, without fields that have their default.
func limit(l model.Limit) *jen.Statement {
	var fields []jen.Code
	switch l.Per {
	case "":
	case model.PerTenant:
		fields = append(fields, jen.Id("Per").Op(":").Qual(outboxPath, "PerTenant"))
	case model.PerDestination:
		fields = append(fields, jen.Id("Per").Op(":").Qual(outboxPath, "PerDestination"))
	default:
		fields = append(fields, jen.Id("Per").Op(":").Lit(l.Per))
	}
	if l.Concurrency > 0 {
		fields = append(fields, jen.Id("Concurrency").Op(":").Lit(l.Concurrency))
	}
	if l.Rate.Events > 0 {
		fields = append(fields, jen.Id("Rate").Op(":").Add(rate(l.Rate)))
	}
	return jen.Values(fields...)
}

// rate writes a rate on one line.
func rate(r model.Rate) *jen.Statement {
	return jen.Qual(outboxPath, "Rate").Values(
		jen.Id("Events").Op(":").Lit(r.Events), jen.Id("Period").Op(":").Add(duration(r.Period)),
	)
}

// batch writes the bounds of a batch on one line.
func batch(b model.Batch) *jen.Statement {
	fields := []jen.Code{jen.Id("Size").Op(":").Lit(b.Size)}
	if b.Wait > 0 {
		fields = append(fields, jen.Id("Wait").Op(":").Add(duration(b.Wait)))
	}
	return jen.Qual(outboxPath, "Batch").Values(fields...)
}

// hasLimitKeys reports whether the events of t have keys of limits.
func hasLimitKeys(t *model.Topic) bool { return len(limitKeys(t)) > 0 }

// limitKeys builds the key of each limit of t that is per destination or per template. The key of a destination is its
// text as it is, so it is the one that a publisher gets.
func limitKeys(t *model.Topic) []jen.Code {
	var keys []jen.Code
	for _, l := range t.Limits {
		switch {
		case l.Key != nil:
			keys = append(keys, newKey(l.Key))
		case l.Keyed():
			keys = append(keys, jen.Qual(eventkeyPath, "NewKey").Call(
				jen.Qual(eventkeyPath, "LiteralPart").Call(jen.Id(publishDestinationFunc(t)).Call(jen.Id(untyped)))))
		}
	}
	return keys
}
