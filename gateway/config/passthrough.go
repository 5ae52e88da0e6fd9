package config

import "fmt"

// Passthrough lets the server itself say who may call: the header Authorization of a request
// goes on to the server with that request. The gateway verifies tokens only to know whose task
// is whose. It needs public_url and, where the store is a Redis, state_keys.
type Passthrough struct {
	// Unverified says what becomes of callers whose token cannot be verified: token gives them
	// tasks that belong to the token, and are lost to them with its refresh; block lets
	// their calls block, and they get no tasks.
	Unverified Unverified `yaml:"unverified"`

	// Audiences are what tokens may be meant for, besides the server and the gateway. It is
	// for authorization servers that write something else than an address into aud.
	Audiences []string `yaml:"audiences"`

	// Introspection verifies tokens that are no JWT of the server's issuers (RFC 7662). Its answers
	// have to say for whom a token is (aud).
	Introspection *Introspection `yaml:"introspection"`
}

// Introspection is where an authorization server says what a token is (RFC 7662).
type Introspection struct {
	// URL is the introspection endpoint. It must be https, or http on a loopback address.
	URL string `yaml:"url" required:"true"`

	// ClientID is the gateway's own name at the endpoint.
	ClientID string `yaml:"client_id" required:"true"`

	// ClientSecret goes with it.
	ClientSecret string `yaml:"client_secret" required:"true"`
}

// NewPassthrough returns a Passthrough with every default.
func NewPassthrough() *Passthrough {
	return &Passthrough{Unverified: UnverifiedToken}
}

func (t *Passthrough) seed(any) { *t = *NewPassthrough() }

// checkPassthrough checks how the callers of a server that signs them in are known.
func (p *problems) checkPassthrough(at string, t *Passthrough, c *Config) {
	p.checkFields(at, t)
	for i, audience := range t.Audiences {
		if audience == "" {
			p.add(fmt.Sprintf("%s.audiences[%d]", at, i), "is empty")
		}
	}
	if i := t.Introspection; i != nil {
		at := at + ".introspection"
		p.checkFields(at, i)
		p.secureURL(at+".url", i.URL)
	}
	if c.PublicURL == "" {
		p.addFor([]string{at, "public_url"}, "needs public_url: clients are told by it where to get a token")
	}
	if !c.OwnsStore() && len(c.StateKeys) == 0 {
		p.addFor([]string{at, "state_keys"}, "needs state_keys: replicas have to agree on whose token is whose")
	}
}
