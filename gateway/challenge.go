package gateway

import (
	"cmp"
	"slices"
	"strings"
)

// This file writes anew what a server says with a 401 or 403. Clients search the header WWW-Authenticate for the
// metadata of the resource by loose patterns, across quotes and across values. So a server could send its callers
// to metadata of its own choice, and have them fetch a token for the whole gateway. What clients get is therefore
// made of parsed parts, and nothing but the gateway's own address is left in it that such a pattern finds.

// keptParams are the parameters of a challenge that clients of OAuth read (RFC 6750, RFC 9449, RFC 9470, OpenID
// Connect), in the order in which they are written.
var keptParams = []string{"error", "error_description", "error_uri", "scope", "realm", "acr_values", "max_age", "algs"}

// metadataParam is the parameter that names the metadata of a resource (RFC 9728 section 5.1).
const metadataParam = "resource_metadata"

// rewriteChallenges returns the values of WWW-Authenticate for a client, in which page is the address of the
// metadata. The challenges of Bearer and DPoP come first, each as a value of its own. A challenge of another
// scheme follows as the server has written it, unless it contains the name of the parameter. named is the address
// that the server has named first; "" for none.
func rewriteChallenges(values []string, page string) (out []string, named string) {
	var others []string
	for _, value := range values {
		for _, c := range parseChallenges(value) {
			switch {
			case strings.EqualFold(c.scheme, "Bearer"), strings.EqualFold(c.scheme, "DPoP"):
				named = cmp.Or(named, c.params[metadataParam])
				out = append(out, c.withMetadata(page))
			case !namesMetadata(c.text):
				others = append(others, c.text)
			}
		}
	}
	return slices.Concat(out, others), named
}

// namesMetadata reports whether a client's pattern may find the address of metadata in a text.
func namesMetadata(text string) bool { return strings.Contains(strings.ToLower(text), metadataParam) }

// challenge is one of those in a value of WWW-Authenticate (RFC 9110 section 11.6.1).
type challenge struct {
	scheme string
	params map[string]string // by name in small letters, without quotes; the first of each name
	text   string            // as the server has written it
}

// withMetadata writes the challenge with the parameters that are kept, and page as the address of the metadata.
func (c challenge) withMetadata(page string) string {
	out := c.scheme + " " + metadataParam + "=" + quoteValue(page)
	for _, name := range keptParams {
		if value, ok := c.params[name]; ok && !namesMetadata(value) {
			out += ", " + name + "=" + quoteValue(value)
		}
	}
	return out
}

// quoteValue writes a value of a parameter as a quoted string.
func quoteValue(value string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value) + `"`
}

// parseChallenges reads a value of WWW-Authenticate. Whatever follows a mistake of the grammar is left out.
func parseChallenges(value string) (all []challenge) {
	r := reader{value}
	for r.skipAll(" \t,"); r.rest != ""; r.skipAll(" \t,") {
		begin := r.rest
		c := challenge{scheme: r.readToken(), params: map[string]string{}}
		if c.scheme == "" || r.rest != "" && !strings.ContainsAny(r.rest[:1], " \t,") {
			return all
		}
		ok := r.readParams(c.params)
		c.text = strings.TrimRight(begin[:len(begin)-len(r.rest)], " \t,")
		all = append(all, c)
		if !ok {
			return all
		}
	}
	return all
}

// reader is what is left of a value to read.
type reader struct{ rest string }

// skipAll leaves out characters of a set.
func (r *reader) skipAll(set string) { r.rest = strings.TrimLeft(r.rest, set) }

// readToken reads a token (RFC 9110 section 5.6.2); "" for none.
func (r *reader) readToken() string {
	end := strings.IndexFunc(r.rest, func(c rune) bool {
		return c > '~' || !strings.ContainsRune("!#$%&'*+-.^_`|~", c) && (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z')
	})
	if end < 0 {
		end = len(r.rest)
	}
	found := r.rest[:end]
	r.rest = r.rest[end:]
	return found
}

// readParams reads what follows a scheme, up to the next scheme: a token68, or parameters. It returns false for what
// is neither.
func (r *reader) readParams(found map[string]string) bool {
	r.skipAll(" \t")
	if r.atComma() {
		return true
	}
	if end := strings.IndexAny(r.rest+",", " \t,"); isToken68(r.rest[:end]) {
		if after := (reader{r.rest[end:]}); after.rest == "" || after.atComma() {
			*r = after
			return true
		}
	}
	for r.rest != "" {
		before := r.rest
		name := strings.ToLower(r.readToken())
		r.skipAll(" \t")
		if name == "" || !strings.HasPrefix(r.rest, "=") {
			r.rest = before // the next scheme, or a mistake
			return name != ""
		}
		r.rest = r.rest[1:]
		r.skipAll(" \t")
		value, ok := r.readValue()
		if !ok {
			return false
		}
		if _, again := found[name]; !again {
			found[name] = value
		}
		if r.rest != "" && !r.atComma() {
			return false
		}
		r.skipAll(" \t,")
	}
	return true
}

// atComma reports whether a comma is next, but for blanks.
func (r *reader) atComma() bool { return strings.HasPrefix(strings.TrimLeft(r.rest, " \t"), ",") }

// readValue reads the value of a parameter, a token or a quoted string.
func (r *reader) readValue() (string, bool) {
	if !strings.HasPrefix(r.rest, `"`) {
		// Servers write addresses and lists without quotes: what ends such a value is a blank or a comma.
		end := strings.IndexAny(r.rest+",", " \t,\";\\")
		value := r.rest[:end]
		r.rest = r.rest[end:]
		return value, value != ""
	}
	var text strings.Builder
	for i := 1; i < len(r.rest); i++ {
		switch r.rest[i] {
		case '"':
			r.rest = r.rest[i+1:]
			return text.String(), true
		case '\\':
			if i++; i == len(r.rest) {
				return "", false
			}
		}
		text.WriteByte(r.rest[i])
	}
	return "", false
}

// isToken68 reports whether a text has the form of a token68 (RFC 9110 section 11.2).
func isToken68(text string) bool {
	bare := strings.TrimRight(text, "=")
	r := reader{strings.NewReplacer("/", "a").Replace(bare)} // besides the slash, all of its characters are those of a token
	return bare != "" && r.readToken() != "" && r.rest == ""
}
