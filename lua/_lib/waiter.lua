-- Provides waiter_of(owner): the waiter behind an owner's name. Among several
-- masters the attempts of one wait have names of their own, <waiter>~<number>,
-- while its place in the queue keeps the waiter's.
local function waiter_of(owner)
  return string.match(owner, '^[^~]*')
end
